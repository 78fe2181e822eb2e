"""Epochs and steps of several calls of `fit`, as the user's process counts them; no Ray is started."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from turnsmith.config import ConfigStore
from turnsmith.env.examples.guess_number import GuessNumber
from turnsmith.errors import TrainingFailure
from turnsmith.records.checkpoints import Checkpoint, write_state
from turnsmith.trainer import RayPPOTrainer, ray_ppo_trainer, resume, session
from turnsmith.trainer.dataset import Epochs
from turnsmith.trainer.resume import Recipe, reopen


class Runner:
    """Stands where the task runner is: trains at once, and notes the epoch of each step and where it would save."""

    def __init__(self, trainer: RayPPOTrainer) -> None:
        self.at, self.saves, self.epochs = 0, list[int](), list[int]()
        self.show = trainer._show
        self.every = trainer.config.checkpoint.save_interval

    def __getattr__(self, name: str) -> Any:
        method = vars(Runner).get(f"_{name}")
        return SimpleNamespace(remote=lambda *args, **named: method(self, *args) if method else self.at)

    def _load(self, checkpoint: str) -> int:
        self.at = int(checkpoint.rpartition("_")[2])
        return self.at

    def _train_until(self, last: int, epochs: Epochs) -> bool:
        while self.at < last:
            self.at += 1
            self.epochs.append(epochs.of(self.at))
            self.saves += [self.at] * epochs.end_with(self.at, self.every)
            self.show("step", {"step": self.at})
        return True


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RayPPOTrainer:
    config = ConfigStore()
    config.model.model_name, config.checkpoint.output_dir = "tiny", str(tmp_path / "runs")
    config.training.check, config.checkpoint.save_interval = False, 2
    made = RayPPOTrainer(config, GuessNumber)
    stub = SimpleNamespace(
        start=lambda tell: None, actor=lambda cls, *, threads: Runner(made), close=lambda: None, is_local=False
    )
    monkeypatch.setattr(session, "Cluster", lambda *args: stub)
    monkeypatch.setattr(RayPPOTrainer, "_watch", lambda self, reference, grace=None: reference)
    return made


def test_epochs_and_saves_follow_each_call(trainer: RayPPOTrainer, capsys: pytest.CaptureFixture[str]) -> None:
    trainer.fit(num_epochs=2, num_iters_per_epoch=1)
    trainer.fit(num_epochs=2, num_iters_per_epoch=2)
    runner: Any = trainer._runner
    assert runner.epochs == [0, 1, 2, 2, 3, 3]
    assert runner.saves == [2, 6]
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("step")] == [
        "step 1/2",
        "step 2/2",
        *(f"step {step}/6" for step in range(3, 7)),
    ]


def test_they_go_on_after_a_checkpoint_is_loaded(
    trainer: RayPPOTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = Checkpoint(tmp_path / "global_step_3", 3, signed=True)
    saved.path.mkdir()
    write_state(saved.path, {"step": 3, "epoch": 2})
    monkeypatch.setattr(ray_ppo_trainer, "find_checkpoint", lambda *args, **named: saved)
    monkeypatch.setattr(ray_ppo_trainer, "check_fit", lambda *args: None)
    assert trainer.load_checkpoint(tmp_path) == 3
    trainer.fit(num_epochs=2, num_iters_per_epoch=1)
    runner: Any = trainer._runner
    assert runner.epochs == [3, 4]
    assert "step 4/5" in capsys.readouterr().out


def test_a_resumed_run_counts_as_the_one_that_was_stopped(
    trainer: RayPPOTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer.fit(num_epochs=1, num_iters_per_epoch=1)
    trainer.fit(num_epochs=2, num_iters_per_epoch=3)
    assert trainer.run is not None
    trainer.cleanup()
    monkeypatch.setattr(resume, "saved_steps", lambda folder: [])
    stopped = reopen(trainer.run.path, {})
    assert stopped.recipe.epochs == trainer._epochs == Epochs(3, after=1, first=1)
    assert Recipe(7, 3).epochs == Epochs(3)


def test_after_cleanup_it_says_how_to_go_on(trainer: RayPPOTrainer, tmp_path: Path) -> None:
    trainer.fit(num_epochs=1, num_iters_per_epoch=2)
    trainer.cleanup()
    assert trainer.run is not None
    runs = list((tmp_path / "runs").iterdir())
    for call in (trainer.fit, lambda: trainer.save_checkpoint(tmp_path)):
        with pytest.raises(TrainingFailure, match=r"ended after step 2.*RayPPOTrainer\.resume\('.*'\) goes on with it"):
            call()
    assert list((tmp_path / "runs").iterdir()) == runs


def test_epochs_count_from_0() -> None:
    assert [Epochs(steps=2).of(step) for step in (1, 2, 3)] == [0, 0, 1]
