"""When a checkpoint is saved: while the engine on the same GPUs sleeps, and by the clock where one takes minutes."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from turnsmith.config import ConfigStore
from turnsmith.config_sources import apply_overrides
from turnsmith.errors import ConfigError
from turnsmith.trainer.checkpoints.contents import CheckpointPolicy
from turnsmith.trainer.config.check import check
from turnsmith.trainer.dataset import Epochs
from turnsmith.trainer.verl.schedules import ColocatedAsyncTrainer, SyncTrainer


def trainer(kind: Any, done: list[str], minutes: float = 0.0) -> Any:
    """As much of a trainer as ends a step; verl's own methods note what they would do."""
    made = object.__new__(kind)
    made.emit = lambda kind, content: None
    made.timing_raw, made.global_steps, made.total_training_steps = {}, 3, 100
    made.epochs = Epochs(3)
    made.saving = CheckpointPolicy(1, 1, with_model=False, trust_remote_code=False, minutes=minutes)
    made.llm_server_manager = SimpleNamespace(server_handles=[])
    made.config = SimpleNamespace(trainer=SimpleNamespace(default_local_dir="unused"))
    made.checkpoint_manager = SimpleNamespace(
        update_weights=lambda version: done.append("wake up"), resume_generation_replicas=lambda: None
    )
    made._write = lambda folder: done.append("save")
    return made


@pytest.mark.parametrize("kind", [SyncTrainer, ColocatedAsyncTrainer])
def test_shards_are_written_before_the_engine_wakes_up(kind: Any) -> None:
    done: list[str] = []
    trainer(kind, done).on_step_end()
    assert done == ["save", "wake up"]


def test_by_the_clock_the_end_of_an_epoch_does_not_count() -> None:
    done: list[str] = []
    made = trainer(SyncTrainer, done, minutes=30)
    made.on_step_end()
    assert done == ["wake up"]
    made._saved_at = time.monotonic() - 31 * 60
    made.global_steps = 4  # in the middle of an epoch
    made.on_step_end()
    assert done == ["wake up", "save", "wake up"]


@pytest.mark.parametrize(
    ("settings", "minutes"),
    [
        ("model.device=cuda", 30.0),  # 8 billion weights are 128 GB; an endless dataset has an epoch of ten steps
        ("model.device=cuda checkpoint.save_minutes=0", 0.0),
        ("model.device=cuda checkpoint.save_interval=0", 0.0),
        ("model.device=cuda players.opponent=self", 0.0),
        ("model.device=cpu", 0.0),
        ("model.device=cpu checkpoint.save_minutes=5", 5.0),
    ],
)
def test_on_gpus_checkpoints_are_saved_by_the_clock(settings: str, minutes: float) -> None:
    config = apply_overrides(ConfigStore(), settings.split())
    assert CheckpointPolicy.of(config).minutes == minutes


def test_past_models_of_a_player_are_not_saved_by_the_clock() -> None:
    with pytest.raises(ConfigError, match="past models of a player that is self are saved by epochs"):
        check(apply_overrides(ConfigStore(), ["players.opponent=self", "checkpoint.save_minutes=5"]))
