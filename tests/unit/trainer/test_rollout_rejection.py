"""Advantages do not depend on the tokens that verl's rollout rejection leaves out of the loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import NonTensorStack
from tests.unit.trainer.batch_store import BatchStore, nested

from turnsmith.config import ConfigStore
from turnsmith.records.advantages import read_advantages
from turnsmith.records.run_folder import RunFolder
from turnsmith.trainer.advantages import advantages_of
from turnsmith.trainer.verl.agent_loop import to_verl_outputs
from turnsmith.trajectory import Trajectory, TurnRecord


def episode(name: str, rewards: list[float]) -> Trajectory:
    """Two turns of three tokens, with an observation of one token between them."""
    turns = [TurnRecord(1, 4, "stop", 0), TurnRecord(5, 8, "stop", 0)]
    made = Trajectory(["a", name], rewards=rewards, turns=turns, episode_id=name, group_id="g")
    made.tokens.open([5])
    made.tokens.append_model([6, 7, 8], [-0.5] * 3)
    made.tokens.append_context([9])
    made.tokens.append_model([6, 7, 8], [-0.5] * 3)
    return made


def stored(monkeypatch: pytest.MonkeyPatch, episodes: list[Trajectory]) -> BatchStore:
    outputs = [to_verl_outputs(one, with_anchors=True)[0].as_dict() for one in episodes]
    names = ("response_mask", "rm_scores", "turn_anchors")
    fields: dict[str, Any] = {name: nested([output[name] for output in outputs]) for name in names}
    fields["uid"] = NonTensorStack(*["g"] * len(episodes))
    own = [one.tokens.log_probs[one.tokens.prompt_length :].tolist() for one in episodes]
    fields["rollout_log_probs"] = nested(own)
    own[0][1] += 3.0  # the trainer is far more sure of this token than the engine was
    fields["old_log_probs"] = nested(own)
    fields["values"] = nested([torch.linspace(0, 1, 7)] * len(episodes))
    return BatchStore(monkeypatch, ["g_0_0", "g_1_0"], fields)


@pytest.mark.parametrize(
    ("estimator", "credit"),
    [
        ("grpo", "turn"),
        ("grpo", "anchored"),
        ("rloo", "turn"),
        ("gae", "turn"),
        ("gae", "episode"),
        ("grpo", "episode"),
    ],
)
def test_a_rejected_token_changes_no_advantage(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, estimator: str, credit: str
) -> None:
    config = ConfigStore()
    config.training.adv_estimator, config.training.credit, config.training.gamma = estimator, credit, 0.5
    config.verl = {
        "algorithm.rollout_correction.rollout_rs": "token_k1",
        "algorithm.rollout_correction.rollout_rs_threshold": "0.5_2.0",
    }
    episodes = [episode("g-0", [1.0, 0.25]), episode("g-1", [0.0, 1.0])]
    store, run = stored(monkeypatch, episodes), RunFolder.create(tmp_path, "run")
    store.compute_advantages(config, run)
    trained = read_advantages(run.path, 1)
    assert store.fields["response_mask"][0].tolist() == [1, 0, 1, 0, 1, 1, 1], "the loss leaves the rejected token out"
    offline = advantages_of(episodes, config.training, trained)
    assert {name: list(row) for name, row in trained.advantages.items()} == offline
