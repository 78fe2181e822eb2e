"""A batch of verl's without TransferQueue, and our trainer's advantages computed on it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transfer_queue
from tensordict import TensorDict
from verl.trainer.ppo import core_algos

from turnsmith.config import ConfigStore
from turnsmith.records.advantages import StepAdvantages
from turnsmith.records.run_folder import RunFolder
from turnsmith.trainer.advantages import get_estimator
from turnsmith.trainer.config.check import verl_config
from turnsmith.trainer.verl.estimators import RunEstimator
from turnsmith.trainer.verl.schedules import SyncTrainer


def nested(rows: list[Any]) -> Any:
    """Rows of several lengths as one tensor."""
    return torch.nested.as_nested_tensor([torch.as_tensor(row) for row in rows], layout=torch.jagged)


class BatchStore:
    """Has the fields of one batch where TransferQueue would have them."""

    theirs: Any
    """verl's config, once the advantages are computed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, keys: list[str], fields: dict[str, Any]) -> None:
        self.keys, self.fields, self._monkeypatch = keys, fields, monkeypatch
        for method in ("kv_batch_get", "kv_batch_put"):
            monkeypatch.setattr(transfer_queue, method, getattr(self, method))

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> TensorDict:
        return TensorDict({name: self.fields[name] for name in select_fields if name in self.fields}, [len(keys)])

    def kv_batch_put(self, keys: list[str], partition_id: str, fields: TensorDict) -> Any:
        self.fields.update(fields.items())
        tags: list[dict[str, Any]] = [{} for _ in keys]
        return transfer_queue.KVBatchMeta(partition_id=partition_id, keys=keys, tags=tags, fields=list(self.fields))

    def compute_advantages(self, config: ConfigStore, run: RunFolder) -> Any:
        """Let our trainer compute the advantages of step 1 and record them; returns the batch that the ranks get."""
        estimator, credit = config.training.adv_estimator, config.training.credit
        trainer: Any = object.__new__(SyncTrainer)
        trainer.config = self.theirs = verl_config(config, model_path="tiny", run_dir=str(run.path), steps=1)
        trainer.plan = SimpleNamespace(config=config, run_dir=str(run.path))
        trainer.use_critic, trainer.global_steps, trainer._advantages = estimator == "gae", 1, StepAdvantages()
        trainer.parameter_sync_step, trainer.local_trigger_step = 1, 0
        self._monkeypatch.setattr(core_algos, "ADV_ESTIMATOR_REGISTRY", {})  # another test may have registered it
        trainer._estimator = RunEstimator(trainer.config.algorithm.adv_estimator, get_estimator(estimator), credit)
        batch = transfer_queue.KVBatchMeta(partition_id="train", keys=self.keys, tags=[{} for _ in self.keys])
        return trainer._compute_advantage(batch, {})
