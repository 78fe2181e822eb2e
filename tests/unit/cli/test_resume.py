"""`turnsmith resume`: what it takes from a run folder, and what it deletes before the run continues."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turnsmith import ActionParser, JSONActionParser, ToolRegistry, advantage_estimator, tool
from turnsmith.cli.main import main
from turnsmith.config import ConfigStore, EnvironmentConfig
from turnsmith.config_sources import apply_overrides, to_dict
from turnsmith.env.examples.guess_number import GuessNumber
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import RecordError
from turnsmith.records.checkpoints import PendingCheckpoint, saved_steps, write_state
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.run_lock import claim_run
from turnsmith.rollout.spec import EpisodeParts
from turnsmith.trainer import RayPPOTrainer, resume
from turnsmith.trainer.dataset import CustomEnvironmentDataset, Epochs
from turnsmith.trainer.resume import Recipe, reopen
from turnsmith.trainer.run_parts import RunParts


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
    overrides: tuple[str, ...] = (),
    parser: ActionParser | None = None,
) -> RunFolder:
    """A run of 8 steps that was killed in its sixth; a checkpoint was saved at each of `steps`."""
    config = apply_overrides(ConfigStore(), overrides)
    config.model.model_name = "tiny"
    config.training.num_epochs, config.training.steps_per_epoch = 4, 2
    run = RunFolder.create(tmp_path, "run")
    run.write_config(to_dict(config))
    dataset = CustomEnvironmentDataset()
    dataset.save(run.path, seed=0)
    spec = EnvironmentSpec.of(environment, config.environment)
    parts = RunParts.of(config, EpisodeParts(reward_fn=reward_fn, tools=tools, parser=parser), spec, dataset)
    Recipe.of(config, parts, 8, Epochs(2)).write(run.path)
    for step in range(1, 6):
        run.append_metrics({"step": step})
        (run.episodes_dir / f"step-{step:08d}-0.parquet").write_bytes(b"")
    for step in steps:
        pending = PendingCheckpoint(run.checkpoints_dir, step)
        (pending.path / "actor").mkdir()
        (pending.path / "actor" / "fsdp_config.json").write_text('{"world_size": 1}')
        write_state(pending.path, {"step": step, "versions": {"torch": "1.0"} if step == 2 else {}})
        pending.seal()
        pending.commit()
    PendingCheckpoint(run.checkpoints_dir, 6)  # was being written when the run died
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
    assert trainer._steps_to_make(None, None) == (4, Epochs(2))
    assert capsys.readouterr().out == f"Resuming {run.path} after step 4.\n"
    assert run.read_events()[-1]["kind"] == "resumed"


def test_a_damaged_checkpoint_is_reported_and_the_one_before_used(tmp_path: Path) -> None:
    run = stopped_run(tmp_path)
    (run.checkpoints_dir / "global_step_4" / "trainer.json").write_text("{}")
    stopped = reopen(run.path, {})
    assert stopped.step == 2
    assert "global_step_4 is damaged: trainer.json has 2 bytes" in stopped.warnings[0]
    assert "written with torch 1.0 (now" in stopped.warnings[1]
    assert saved_steps(run.checkpoints_dir) == [2]


def test_a_checkpoint_whose_replacement_was_killed_between_two_renames_is_used(tmp_path: Path) -> None:
    run = stopped_run(tmp_path)
    newest = run.checkpoints_dir / "global_step_4"
    newest.rename(run.checkpoints_dir / ".replaced-global_step_4")
    assert reopen(run.path, {}).step == 4
    assert saved_steps(run.checkpoints_dir) == [4, 2]


def test_what_killed_writes_left_behind_is_removed(tmp_path: Path) -> None:
    run = stopped_run(tmp_path)
    left = [run.path / ".config.yaml.7.tmp", run.episodes_dir / ".step-00000005-0.parquet.7.tmp"]
    left.append(run.checkpoints_dir / ".best.json.7.tmp")
    for file in left:
        file.write_text("half")
    reopen(run.path, {})
    assert not [file for file in left if file.exists()]


def test_without_a_checkpoint_the_run_starts_again(tmp_path: Path) -> None:
    run = stopped_run(tmp_path, steps=())
    stopped = reopen(run.path, {})
    assert (stopped.step, stopped.checkpoint, run.read_metrics()) == (0, None, [])


def test_with_only_damaged_checkpoints_nothing_is_deleted(tmp_path: Path) -> None:
    run = stopped_run(tmp_path, steps=(4,))
    (run.checkpoints_dir / "global_step_4" / "manifest.json").unlink()
    with pytest.raises(RecordError, match=r"no usable checkpoint.*never finished"):
        reopen(run.path, {})
    assert len(run.read_metrics()) == 5


def test_more_steps_can_be_asked_for(tmp_path: Path) -> None:
    run = stopped_run(tmp_path)
    trainer = RayPPOTrainer.resume(run.path, overrides=["training.num_epochs=10"])
    assert trainer._steps_to_make(None, None) == (16, Epochs(2))


def test_a_run_that_is_done_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = stopped_run(tmp_path)
    assert main(["resume", str(run.path), "training.num_epochs=2"]) == 0
    assert f"All 4 steps of {run.path} are done." in capsys.readouterr().out


def test_another_number_of_ranks_is_told_and_recorded(tmp_path: Path) -> None:
    run = stopped_run(tmp_path)
    stopped = reopen(run.path, {}, ["ray.gpus_per_node=2"])
    assert (stopped.step, stopped.config.ray.gpus_per_node) == (4, 2)
    assert "global_step_4 was written by 1 ranks and is loaded by 2." in stopped.warnings[0]
    assert run.read_events()[-1]["warnings"] == stopped.warnings


def test_a_run_in_progress_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = stopped_run(tmp_path)
    monkeypatch.setattr(resume, "_LOCK_SECONDS", 0.0)
    with claim_run(run.path, 0), pytest.raises(RecordError, match="is in use"):
        reopen(run.path, {})
    assert len(run.read_metrics()) == 5


def test_a_run_of_another_user_has_to_be_trusted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = stopped_run(tmp_path)
    (tmp_path / "user").rename(tmp_path / "another-user")
    assert main(["resume", str(run.path)]) == 2
    assert "if you trust it, pass trust=True, or --trust" in capsys.readouterr().err
    assert main(["resume", str(run.path), "--trust", "training.num_epochs=2"]) == 0


def test_parts_with_names_are_imported(tmp_path: Path) -> None:
    tools = ToolRegistry([look])
    parts = reopen(stopped_run(tmp_path, reward_fn=pay, tools=tools).path, {}).parts
    assert parts["reward_fn"] is pay
    assert parts["tools"] is not None
    assert list(parts["tools"]) == [look]
    assert parts["environment"].load() is GuessNumber


def test_parts_without_names_have_to_be_passed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Inner(GuessNumber):
        """Defined inside a function, so it cannot be imported."""

    run = stopped_run(tmp_path, environment=Inner, reward_fn=lambda trajectory: 0.0)
    assert main(["resume", str(run.path)]) == 2
    error = capsys.readouterr().err
    assert "its environment (" in error
    assert f"RayPPOTrainer.resume({str(run.path)!r}, environment=..., reward_fn=...).fit()" in error
    parts = reopen(run.path, {"environment": Inner, "reward_fn": pay}).parts
    assert (parts["environment"], parts["reward_fn"]) == (Inner, pay)


def test_an_environment_object_keeps_its_own_settings(tmp_path: Path) -> None:
    run = stopped_run(tmp_path, environment=GuessNumber(EnvironmentConfig(highest=3)))
    assert reopen(run.path, {}).parts["environment"].build().config.highest == 3
    strange = GuessNumber(EnvironmentConfig(board=(1, 2)))
    with pytest.raises(RecordError, match="settings that have no JSON form"):
        reopen(stopped_run(tmp_path, environment=strange).path, {})


def test_a_run_without_resume_json_cannot_be_resumed(tmp_path: Path) -> None:
    run = stopped_run(tmp_path)
    (run.path / "resume.json").unlink()
    with pytest.raises(RecordError, match=r"has no resume\.json"):
        reopen(run.path, {})


class OwnParser(JSONActionParser):
    """A parser of the user's own."""


@advantage_estimator
def own_estimator(inputs: Any) -> Any:
    """An estimator of the user's own."""
    return inputs.rewards


HERE = "tests.unit.cli.test_resume"


def test_what_the_user_registered_is_found_again(tmp_path: Path) -> None:
    run = stopped_run(tmp_path, overrides=(f"training.adv_estimator={HERE}:own_estimator",), parser=OwnParser())
    recipe = Recipe.read(run.path)
    assert recipe.extensions == {"training.adv_estimator": [f"{HERE}:own_estimator"]}
    assert recipe.parts["parser"] == f"{HERE}:OwnParser"
    trainer = RayPPOTrainer.resume(run.path)
    assert trainer.config.training.adv_estimator == f"{HERE}:own_estimator"
    assert isinstance(trainer.parts.parser, OwnParser)


def test_a_parser_with_settings_has_to_be_passed_again(tmp_path: Path) -> None:
    run = stopped_run(tmp_path, parser=OwnParser(max_chars=5))
    with pytest.raises(RecordError, match=r"its parser \(a OwnParser with settings of its own\) cannot be imported"):
        reopen(run.path, {})
    assert reopen(run.path, {"parser": OwnParser(max_chars=5)}).parts["parser"].max_chars == 5  # type: ignore[union-attr]


def test_a_config_file_that_was_changed_to_name_other_code_is_not_trusted(tmp_path: Path) -> None:
    run = stopped_run(tmp_path)
    config = (run.path / "config.yaml").read_text()
    (run.path / "config.yaml").write_text(config.replace("warnings: []", f"warnings: ['{HERE}:pay']"))
    with pytest.raises(RecordError, match=r"config.yaml names code that resume.json does not"):
        reopen(run.path, {})
    assert reopen(run.path, {}, trust=True).config.logging.warnings == [f"{HERE}:pay"]


def test_an_override_may_name_other_code(tmp_path: Path) -> None:
    run = stopped_run(tmp_path)
    assert reopen(run.path, {}, [f"logging.warnings=[{HERE}:pay]"]).config.logging.warnings == [f"{HERE}:pay"]
