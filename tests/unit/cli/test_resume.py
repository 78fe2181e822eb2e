"""`turnsmith resume`: what a run folder says about how to go on, and what is removed before it does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turnsmith import ToolRegistry, tool
from turnsmith.cli.main import main
from turnsmith.config import ConfigStore, EnvironmentConfig
from turnsmith.config_sources import to_dict
from turnsmith.env.examples.guess_number import GuessNumber
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import RecordError
from turnsmith.records.checkpoints import PendingCheckpoint, saved_steps, write_state
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.run_lock import lock_run
from turnsmith.trainer import RayPPOTrainer, resume
from turnsmith.trainer.dataset import CustomEnvironmentDataset
from turnsmith.trainer.recipe import Recipe
from turnsmith.trainer.resume import Parts, reopen


@pytest.fixture(autouse=True)
def _own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr(sys, "path", list(sys.path))


def pay(trajectory: Any) -> float:
    """A reward with a name."""
    return 1.0


@tool
def look(place: str) -> str:
    """Look somewhere."""
    return place


def stopped_run(
    tmp_path: Path,
    steps: tuple[int, ...] = (2, 4),
    environment: Any = GuessNumber,
    reward_fn: Callable[..., Any] | None = None,
    tools: ToolRegistry | None = None,
) -> RunFolder:
    """A run of 8 steps that was killed in its sixth; a checkpoint was saved at each of `steps`."""
    config = ConfigStore()
    config.model.model_name = "tiny"
    config.training.num_epochs, config.training.steps_per_epoch = 4, 2
    run = RunFolder.create(tmp_path, "run")
    run.write_config(to_dict(config))
    CustomEnvironmentDataset().save(run.path, seed=0)
    recipe = Recipe.of(EnvironmentSpec.of(environment, config.environment), config.environment, reward_fn, tools, None)
    recipe.steps, recipe.steps_in_epoch = 8, 2
    recipe.write(run.path)
    for step in range(1, 6):
        run.append_metrics({"step": step})
        (run.episodes_dir / f"step-{step:08d}-0.parquet").write_bytes(b"")
    for step in steps:
        draft = PendingCheckpoint(run.checkpoints_dir, step)
        (draft.path / "actor").mkdir()
        (draft.path / "actor" / "fsdp_config.json").write_text('{"world_size": 1}')
        write_state(draft.path, {"step": step, "versions": {"torch": "1.0"} if step == 2 else {}})
        draft.seal()
        draft.commit()
    PendingCheckpoint(run.checkpoints_dir, 6)  # it was being written
    return run


def test_a_run_goes_back_to_its_newest_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = stopped_run(tmp_path)
    trainer = RayPPOTrainer.resume(run.path)
    assert [record["step"] for record in run.read_metrics()] == [1, 2, 3, 4]
    assert trainer.metrics_history == run.read_metrics()
    assert len(list(run.episodes_dir.iterdir())) == 4
    assert not list(run.checkpoints_dir.glob(".*"))
    assert trainer.run == run
    assert trainer.config.training.steps_per_epoch == 2
    assert trainer._steps_to_make(None, None) == (4, 2)
    assert capsys.readouterr().out == f"{run.path} goes on after step 4.\n"
    assert run.read_events()[-1]["kind"] == "resumed"


def test_a_damaged_checkpoint_is_told_and_the_one_before_used(tmp_path: Path) -> None:
    run = stopped_run(tmp_path)
    (run.checkpoints_dir / "global_step_4" / "trainer.json").write_text("{}")
    stopped = reopen(run.path, Parts())
    assert stopped.step == 2
    assert "global_step_4 is damaged: trainer.json has 2 bytes" in stopped.warnings[0]
    assert "written with torch 1.0 (now" in stopped.warnings[1]
    assert saved_steps(run.checkpoints_dir) == [2]


def test_without_a_checkpoint_it_starts_again(tmp_path: Path) -> None:
    run = stopped_run(tmp_path, steps=())
    stopped = reopen(run.path, Parts())
    assert (stopped.step, stopped.checkpoint, run.read_metrics()) == (0, None, [])


def test_with_only_damaged_ones_nothing_is_removed(tmp_path: Path) -> None:
    run = stopped_run(tmp_path, steps=(4,))
    (run.checkpoints_dir / "global_step_4" / "manifest.json").unlink()
    with pytest.raises(RecordError, match=r"no usable checkpoint.*never finished"):
        reopen(run.path, Parts())
    assert len(run.read_metrics()) == 5


def test_more_steps_can_be_asked_for(tmp_path: Path) -> None:
    run = stopped_run(tmp_path)
    trainer = RayPPOTrainer.resume(run.path, overrides=["training.num_epochs=10"])
    assert trainer._steps_to_make(None, None) == (16, 2)


def test_a_run_that_is_done_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = stopped_run(tmp_path)
    assert main(["resume", str(run.path), "training.num_epochs=2"]) == 0
    assert f"All 4 steps of {run.path} are made." in capsys.readouterr().out


def test_another_number_of_ranks_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = stopped_run(tmp_path)
    assert main(["resume", str(run.path), "ray.gpus_per_node=2"]) == 2
    assert "was written by 1 trainer processes and cannot be loaded by 2" in capsys.readouterr().err


def test_a_run_that_goes_on_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = stopped_run(tmp_path)
    monkeypatch.setattr(resume, "_LOCK_SECONDS", 0.0)
    with lock_run(run.path, 0), pytest.raises(RecordError, match="is in use"):
        reopen(run.path, Parts())
    assert len(run.read_metrics()) == 5


def test_what_another_user_wrote_takes_trust(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = stopped_run(tmp_path)
    (tmp_path / "user").rename(tmp_path / "another-user")
    assert main(["resume", str(run.path)]) == 2
    assert "if you trust them, pass trust=True, or --trust" in capsys.readouterr().err
    assert main(["resume", str(run.path), "--trust", "training.num_epochs=2"]) == 0


def test_parts_with_names_are_imported_again(tmp_path: Path) -> None:
    tools = ToolRegistry([look])
    parts = reopen(stopped_run(tmp_path, reward_fn=pay, tools=tools).path, Parts()).parts
    assert parts.reward_fn is pay
    assert parts.tools is not None
    assert list(parts.tools) == [look]
    assert parts.environment.load() is GuessNumber


def test_parts_without_names_have_to_be_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Inner(GuessNumber):
        """Defined where nobody can import it."""

    run = stopped_run(tmp_path, environment=Inner, reward_fn=lambda trajectory: 0.0)
    assert main(["resume", str(run.path)]) == 2
    told = capsys.readouterr().err
    assert "its environment (" in told
    assert f"RayPPOTrainer.resume({str(run.path)!r}, environment=..., reward_fn=...).fit()" in told
    parts = reopen(run.path, Parts(environment=Inner, reward_fn=pay)).parts
    assert (parts.environment, parts.reward_fn) == (Inner, pay)


def test_an_environment_object_keeps_its_own_settings(tmp_path: Path) -> None:
    run = stopped_run(tmp_path, environment=GuessNumber(EnvironmentConfig(highest=3)))
    assert reopen(run.path, Parts()).parts.environment.build().config.highest == 3
    strange = GuessNumber(EnvironmentConfig(board=(1, 2)))
    with pytest.raises(RecordError, match="settings that JSON has no form for"):
        reopen(stopped_run(tmp_path, environment=strange).path, Parts())


def test_a_folder_of_before_cannot_be_resumed(tmp_path: Path) -> None:
    run = stopped_run(tmp_path)
    (run.path / "resume.json").unlink()
    with pytest.raises(RecordError, match=r"has no resume\.json"):
        reopen(run.path, Parts())
