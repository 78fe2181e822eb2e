"""An episode counts once in a step, in however many rows of the batch it is: gradients against a float64 reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from tests.unit.trainer.row_gradients import Step, drawn, reference
from tests.unit.trainer.test_segments import KINDS

from turnsmith.config import ConfigStore, LossAggregation
from turnsmith.trainer.segments import counts_episodes, row_weights

ROWS = {"a0": 1, "a1": 40, "a2": 1, "b0": 3, "b1": 1, "b2": 1}
TOLERANCE = 1e-5
"""Of the gradient's norm. verl computes in float32. Measured: at most 7e-7."""


def settings(estimator: Any, credit: Any, aggregation: Any) -> ConfigStore:
    config = ConfigStore()
    config.training.adv_estimator, config.training.credit = estimator, credit
    config.training.loss_aggregation = aggregation
    config.training.gamma, config.training.lam = 0.9, 0.8
    config.training.entropy_coef, config.training.use_kl_loss, config.training.kl_coef = 0.1, True, 0.2
    config.inference.max_episode_tokens = 500
    return config


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


AGGREGATIONS = get_args(LossAggregation)


def check(monkeypatch: pytest.MonkeyPatch, folder: Path, config: ConfigStore, **split: Any) -> None:
    episodes = drawn(ROWS)
    step = Step(monkeypatch, folder, episodes, config)
    assert step.padding
    for critic in (False, True) if config.training.adv_estimator == "gae" else (False,):
        found, wanted = step.gradients(critic=critic, **split), reference(episodes, config, critic=critic)
        assert distance(found, wanted) < TOLERANCE


@pytest.mark.parametrize(
    ("estimator", "credit", "aggregation"),
    [*(("grpo", "episode", aggregation) for aggregation in AGGREGATIONS), ("gae", "turn", "seq-mean-token-mean")],
)
def test_an_episode_of_forty_rows_counts_as_one_of_one_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, estimator: str, credit: str, aggregation: str
) -> None:
    check(monkeypatch, tmp_path, settings(estimator, credit, aggregation), ranks=2, micro=12)


@pytest.mark.nightly
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize(("estimator", "credit"), KINDS)
def test_so_it_does_with_every_estimator(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, estimator: str, credit: str, aggregation: str
) -> None:
    check(monkeypatch, tmp_path, settings(estimator, credit, aggregation), ranks=4, micro=5)


@pytest.mark.nightly
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize(("ranks", "micro", "updates"), [(1, 1, 1), (1, 48, 1), (4, 3, 1), (8, 6, 1), (2, 4, 3)])
def test_ranks_micro_batches_and_mini_batches_change_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, aggregation: str, ranks: int, micro: int, updates: int
) -> None:
    if updates > 1 and not counts_episodes(aggregation):
        return  # verl's mean over tokens is over those of each mini-batch, and its sum is not divided
    config = settings("rloo", "episode", aggregation)
    check(monkeypatch, tmp_path, config, ranks=ranks, micro=micro, updates=updates)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_weights_of_episodes_of_one_row_are_one(aggregation: str) -> None:
    assert row_weights("abc", [3, 9, 1], aggregation) == [1.0] * 3
