"""What the trainers of the schedules send to rollout servers, and what they refuse to load."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.trainer.episode_queue import Queue, replace_queue

from turnsmith.config import ConfigStore, TrainingConfig
from turnsmith.errors import TrainingFailure
from turnsmith.trainer.verl import schedules
from turnsmith.trainer.verl.schedules import SeparateAsyncTrainer, trainer_class
from turnsmith.trainer.verl.trainer import EpisodeTrainer


class Calls(list[tuple[Any, ...]]):
    """Stands where the ranks and the manager of weights are, and keeps what is asked of them."""

    def __init__(self, *failing: str) -> None:
        super().__init__()
        self._failing = failing

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> None:
            self.append((name, *args))
            if name in self._failing:
                raise RuntimeError("a server is lost")

        return call


def trainer(calls: Calls, *, is_ahead: bool) -> Any:
    made: Any = SeparateAsyncTrainer.__new__(SeparateAsyncTrainer)
    made.actor_rollout_wg = made.standalone_checkpoint_manager = calls
    made._is_ahead = is_ahead
    return made


def test_between_steps_the_weights_of_now_are_sent() -> None:
    calls = Calls()
    trainer(calls, is_ahead=False).send_weights(7)
    assert calls == [("update_weights", 7)]


@pytest.mark.parametrize("failing", [[], ["update_weights"]])
def test_between_the_updates_of_a_step_those_of_its_beginning_are_sent(failing: list[str]) -> None:
    calls = Calls(*failing)
    made = trainer(calls, is_ahead=True)
    if failing:
        with pytest.raises(RuntimeError, match="a server is lost"):
            made.send_weights(7)
    else:
        made.send_weights(7)
    assert calls == [
        ("save_model_to_cpu", -1),
        ("restore_model_from_cpu", 0),
        ("update_weights", 7),
        ("restore_model_from_cpu", -1),
        ("clear_cpu_model", -1),
    ]


@pytest.mark.parametrize(("under_way", "fits"), [(8, True), (9, False)])
def test_a_checkpoint_with_more_under_way_than_may_be_is_refused(
    under_way: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue: Queue = replace_queue(monkeypatch)
    groups = {f"{number:04d}": {"is_prompt": True, "status": "finished"} for number in range(under_way)}
    monkeypatch.setattr(EpisodeTrainer, "load", lambda self, checkpoint: queue.update(groups))
    monkeypatch.setattr(schedules.trainer_base.tq, "kv_list", queue.kv_list)
    made: Any = SeparateAsyncTrainer.__new__(SeparateAsyncTrainer)
    made.config = SimpleNamespace(data=SimpleNamespace(train_batch_size=4))
    made.plan = SimpleNamespace(config=ConfigStore(training=TrainingConfig(max_staleness=2)))
    if fits:
        made.load(Path("global_step_3"))
        assert {tag["status"] for tag in queue.values()} == {"pending"}
        with pytest.raises(TrainingFailure, match="Episodes of this run are in flight"):
            made.load(Path("global_step_3"))
    else:
        with pytest.raises(
            TrainingFailure, match=r"global_step_3 has 9 groups under way, but .* no more than 8 can be"
        ):
            made.load(Path("global_step_3"))


@pytest.mark.parametrize(("schedule", "limited"), [("sync", False), ("colocate_async", True), ("separate_async", True)])
def test_every_asynchronous_schedule_limits_how_many_groups_are_replaced(schedule: str, limited: bool) -> None:
    made: Any = object.__new__(trainer_class(schedule))
    made.plan = SimpleNamespace(rollout=SimpleNamespace(failures=SimpleNamespace(drops=False)), filtered_group_size=0)
    assert made.replaces_groups == limited
