"""What the settings of an algorithm switch on, in real training; several in one run, because starting takes long."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from tests.e2e.three_letters import ThreeLetters
from tests.e2e.trained_on import assert_advantages_are_ours
from turnsmith import ConfigStore, RayPPOTrainer
from turnsmith.config import Estimator
from turnsmith.config_sources import apply_overrides

pytestmark = pytest.mark.e2e


def train(folder: Path, *overrides: str) -> tuple[RayPPOTrainer, list[dict[str, Any]]]:
    base = ["model.model_name=tiny", "inference.max_tokens=8", "training.learning_rate=1e-2"]
    quiet = [f"checkpoint.output_dir={folder}", "checkpoint.save_interval=0", "training.batch_size=16"]
    config = apply_overrides(ConfigStore(), [*base, *quiet, *overrides])
    trainer = RayPPOTrainer(config, ThreeLetters)
    try:
        records = trainer.fit(num_epochs=1, num_iters_per_epoch=2)
    finally:
        trainer.cleanup()
    assert all(record["grad_norm"] > 0 for record in records)
    for step in (1, 2):
        assert_advantages_are_ours(trainer, step)
    return trainer, records


def test_ppo_with_a_critic_kl_penalties_and_mini_batches(tmp_path: Path) -> None:
    _, records = train(
        tmp_path,
        "training.adv_estimator=gae",
        "training.credit=turn",
        "training.gamma=0.9",
        "training.lam=0.8",
        "training.critic_learning_rate=1e-3",
        "training.use_kl_in_reward=true",
        "training.use_kl_loss=true",
        "training.kl_coef=0.1",
        "training.entropy_coef=0.01",
        "training.mini_batch_size=8",
        "training.updates_per_batch=2",
        "training.rollout_correction=token",
    )
    assert all(record["value_loss"] > 0 for record in records)
    # Mini-batches move the policy inside a step, so that it leaves the one that acted, and in time the reference.
    assert all(record["kl"] != 0 for record in records)
    assert records[0]["kl/reward"] == pytest.approx(0, abs=1e-6)
    assert records[1]["kl/reward"] != 0
    assert [record["kl/coef"] for record in records] == [0.1, 0.1]
    assert all(record["kl/loss"] > 0 for record in records)
    assert all(record["correction/mean"] == pytest.approx(1, abs=1e-3) for record in records)


@pytest.mark.nightly
def test_lora_with_anchored_credit_and_another_loss(tmp_path: Path) -> None:
    trainer, records = train(
        tmp_path,
        "model.lora_rank=4",
        "training.credit=anchored",
        "training.gamma=0.5",
        "training.policy_loss=cispo",
        "training.clip_ratio_high=0.28",
        "training.loss_aggregation=seq-mean-token-sum",
        "training.rollout_correction=sequence",
    )
    # The engine gets the adapter merged into the weights, which rounds a little.
    assert max(record["rollout_diff/max"] for record in records) < 1e-3
    assert all(record["correction/mean"] == pytest.approx(1, abs=1e-2) for record in records)
    assert trainer.metrics_history == records


@pytest.mark.nightly
@pytest.mark.parametrize("estimator", sorted({*get_args(Estimator)} - {"gae"}))
def test_every_other_estimator_trains(estimator: str, tmp_path: Path) -> None:
    train(tmp_path, f"training.adv_estimator={estimator}")
