"""Callbacks follow a real run; one that stops it leaves a run that `resume` ends as if it had never been stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.same_runs import differences
from turnsmith import ConfigStore, RayPPOTrainer, RunFolder, TrainerCallback, TrainingFailure
from turnsmith.records.run_state import RunState, state_of

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
STEPS, STOP_AT = 6, 3
ENVIRONMENT = f"{Path(__file__).parent / 'three_letters.py'}:ThreeLetters"


class Seen(TrainerCallback):
    """Keeps what it is told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def on_step_end(self, trainer: RayPPOTrainer, metrics: dict[str, Any]) -> None:
        self.told.append(("step", metrics["step"]))
        assert trainer.metrics_history[-1]["step"] >= metrics["step"]
        with pytest.raises(TrainingFailure, match=r"cannot call save_checkpoint\(\) while the run trains"):
            trainer.save_checkpoint("elsewhere")

    def on_evaluate(self, trainer: RayPPOTrainer, metrics: dict[str, Any]) -> None:
        self.told.append(("evaluation", metrics["step"]))

    def on_save(self, trainer: RayPPOTrainer, folder: Path) -> None:
        assert folder.is_dir()
        self.told.append(("saved", folder.name))

    def on_train_end(self, trainer: RayPPOTrainer) -> None:
        self.told.append(("end", len(trainer.metrics_history)))


class StopsOnce(Seen):
    def on_evaluate(self, trainer: RayPPOTrainer, metrics: dict[str, Any]) -> None:
        super().on_evaluate(trainer, metrics)
        if metrics["step"] == STOP_AT:
            trainer.stop()


def _config(folder: Path, name: str) -> ConfigStore:
    config = ConfigStore()
    config.model.model_name, config.inference.max_tokens = "tiny", 4
    config.training.batch_size, config.training.group_size, config.training.learning_rate = 4, 2, 1e-2
    config.training.num_epochs, config.training.steps_per_epoch = 1, STEPS
    config.evaluation.every, config.evaluation.episodes = STOP_AT, 2
    config.checkpoint.output_dir, config.checkpoint.run_name = str(folder), name
    return config


def test_a_callback_follows_a_run_and_stops_it_and_resume_ends_it_as_if_never_stopped(tmp_path: Path) -> None:
    whole, stops, resumed = Seen(), StopsOnce(), Seen()
    first = RayPPOTrainer(_config(tmp_path, "whole"), ENVIRONMENT, callbacks=[whole])
    first.fit()
    first.cleanup()
    steps = [("step", step) for step in range(1, STEPS + 1)]
    assert [one for one in whole.told if one[0] == "step"] == steps
    assert [one for one in whole.told if one[0] == "evaluation"] == [
        ("evaluation", step) for step in (0, STOP_AT, STEPS)
    ]
    assert [one for one in whole.told if one[0] == "saved"][-1] == ("saved", f"global_step_{STEPS}")
    assert whole.told[-1] == ("end", STEPS)

    history = RayPPOTrainer(_config(tmp_path, "stopped"), ENVIRONMENT, callbacks=[stops]).fit()
    folder = RunFolder.open(tmp_path / "stopped")
    made = history[-1]["step"]
    assert STOP_AT <= made < STEPS, "a step that was about to be trained on may still be made"
    assert stops.told[-1] == ("end", made)
    assert state_of(folder.read_events()) is RunState.FINISHED

    last = RayPPOTrainer.resume(folder.path, callbacks=[resumed])
    last.fit()
    last.cleanup()
    assert [one for one in resumed.told if one[0] == "step"] == steps[made:]
    assert differences(folder, RunFolder.open(tmp_path / "whole")) == []


def test_what_a_callback_raises_stops_the_run_and_is_what_fit_raises(tmp_path: Path) -> None:
    class Breaks(TrainerCallback):
        def on_step_end(self, trainer: RayPPOTrainer, metrics: dict[str, Any]) -> None:
            raise ZeroDivisionError("of the user's own")

    with pytest.raises(ZeroDivisionError, match="of the user's own"):
        RayPPOTrainer(_config(tmp_path, "broken"), ENVIRONMENT, callbacks=[Breaks()]).fit()
    assert state_of(RunFolder.open(tmp_path / "broken").read_events()) is RunState.FAILED
