"""Advantages do not depend on the tokens that verl's rollout rejection leaves out of the loss."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transfer_queue
from tensordict import NonTensorStack, TensorDict
from verl.trainer.ppo import core_algos

from turnsmith.config import ConfigStore
from turnsmith.records.advantages import StepAdvantages, read_advantages
from turnsmith.records.run_folder import RunFolder
from turnsmith.trainer.advantages import advantages_of, get_estimator
from turnsmith.trainer.config.build import verl_config
from turnsmith.trainer.verl.agent_loop import to_verl_outputs
from turnsmith.trainer.verl.estimators import register_estimator
from turnsmith.trainer.verl.schedules import SyncTrainer
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


class Store:
    """TransferQueue's fields of one batch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, episodes: list[Trajectory]) -> None:
        outputs = [to_verl_outputs(one, with_anchors=True)[0].as_dict() for one in episodes]
        names = ("response_mask", "rm_scores", "turn_anchors")
        self.fields: dict[str, Any] = {name: self.nested([output[name] for output in outputs]) for name in names}
        self.fields["uid"] = NonTensorStack(*["g"] * len(episodes))
        own = [one.tokens.log_probs[one.tokens.prompt_length :].tolist() for one in episodes]
        self.fields["rollout_log_probs"] = self.nested(own)
        own[0][1] += 3.0  # the trainer is far more sure of this token than the engine was
        self.fields["old_log_probs"] = self.nested(own)
        self.fields["values"] = self.nested([torch.linspace(0, 1, 7)] * len(episodes))
        for method in ("kv_batch_get", "kv_batch_put"):
            monkeypatch.setattr(transfer_queue, method, getattr(self, method))

    @staticmethod
    def nested(rows: list[Any]) -> Any:
        return torch.nested.as_nested_tensor([torch.as_tensor(row) for row in rows], layout=torch.jagged)

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> TensorDict:
        return TensorDict({name: self.fields[name] for name in select_fields if name in self.fields}, [len(keys)])

    def kv_batch_put(self, keys: list[str], partition_id: str, fields: TensorDict) -> Any:
        self.fields.update(fields.items())
        return transfer_queue.KVBatchMeta(partition_id=partition_id, keys=keys, tags=[{} for _ in keys])


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
    store, run = Store(monkeypatch, episodes), RunFolder.create(tmp_path, "run")
    trainer: Any = object.__new__(SyncTrainer)
    trainer.config = verl_config(config, model_path="tiny", run_dir=str(run.path), steps=1)
    trainer.plan = SimpleNamespace(credit=credit, run_dir=str(run.path))
    trainer.use_critic, trainer.global_steps, trainer._advantages = estimator == "gae", 1, StepAdvantages()
    trainer.parameter_sync_step, trainer.local_trigger_step = 1, 0
    monkeypatch.setattr(core_algos, "ADV_ESTIMATOR_REGISTRY", {})  # another test may have registered it
    register_estimator(trainer.config.algorithm.adv_estimator, get_estimator(estimator), credit)
    batch = transfer_queue.KVBatchMeta(partition_id="train", keys=["g_0_0", "g_1_0"], tags=[{}, {}])
    trainer._compute_advantage(batch, {})
    trained = read_advantages(run.path, 1)
    assert store.fields["response_mask"][0].tolist() == [1, 0, 1, 0, 1, 1, 1], "the loss leaves the rejected token out"
    offline = advantages_of(episodes, config.training, trained)
    assert {name: list(row) for name, row in trained.advantages.items()} == offline
