"""How the RUN argument of every command is read, and which model a run folder stands for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.unit.cli.checkpoints import save_models

from turnsmith import RecordError, RunFolder
from turnsmith.cli.main import main
from turnsmith.cli.run_folders import find_run, model_folder
from turnsmith.cli.train import read_config
from turnsmith.records.checkpoints import PendingCheckpoint


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    monkeypatch.chdir(tmp_path)


def make_run(name: str, *, age: int = 0, parent: str = "runs") -> RunFolder:
    run = RunFolder.create(parent, name)
    created = (run.path / "run.json").stat().st_mtime - age
    os.utime(run.path / "run.json", (created, created))
    return run


def test_a_run_is_found_by_path_and_by_name() -> None:
    make_run("cc")
    make_run("other", parent="elsewhere")
    (Path.cwd() / "cc").mkdir()  # a folder of that name which is no run
    assert find_run("cc") == Path("runs/cc")
    assert find_run("runs/cc") == Path("runs/cc")
    assert find_run("other", "elsewhere") == Path("elsewhere/other")
    assert find_run(str(Path.cwd() / "runs" / "cc")) == Path.cwd() / "runs" / "cc"


def test_latest_is_the_newest_run_that_has_what_the_command_needs() -> None:
    (make_run("old", age=20).path / "resume.json").write_text("{}")
    (make_run("new", age=10).path / "resume.json").write_text("{}")
    make_run("evaluation")
    assert find_run("latest") == Path("runs/evaluation")
    assert find_run("latest", containing="resume.json") == Path("runs/new")
    with pytest.raises(RecordError, match=r"no run folder in nowhere has a run\.json"):
        find_run("latest", "nowhere")


def test_a_run_may_be_called_latest() -> None:
    make_run("latest", age=10)
    make_run("new")
    assert find_run("latest") == Path("runs/latest")


@pytest.mark.parametrize("command", [["runs", "report"], ["export"], ["resume"], ["runs", "show"]])
def test_every_command_says_where_it_looked(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    make_run("chess")
    assert main([*command, "ches"]) == 2
    error = capsys.readouterr().err
    assert "There is no run ches: found no run.json in ches or runs/ches. Did you mean runs/chess?" in error
    assert main([*command, "gone/zzz"]) == 2
    error = capsys.readouterr().err
    assert "found no run.json in gone/zzz. `turnsmith runs gone` lists the runs there." in error


@pytest.mark.parametrize(("command", "problem"), [("export", "holds no checkpoint"), ("resume", "has no resume.json")])
def test_a_name_is_enough_to_export_and_resume(command: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    make_run("cc")
    assert main([command, "cc"]) == 2
    assert problem in capsys.readouterr().err


def test_the_model_of_a_run_is_that_of_its_newest_checkpoint() -> None:
    run = make_run("cc")
    save_models(run, 1, 2)
    newest = run.checkpoints_dir / "global_step_2" / "actor" / "huggingface"
    assert read_config(None, "runs/cc", []).model.local_path == str(newest)
    assert model_folder(newest) == newest


def test_a_run_that_saved_no_model_has_to_be_exported() -> None:
    run = make_run("cc")
    with pytest.raises(RecordError, match="holds no checkpoint"):
        model_folder(run.path)
    pending = PendingCheckpoint(run.checkpoints_dir, 1)
    (pending.path / "actor" / "huggingface").mkdir(parents=True)
    (pending.path / "actor" / "huggingface" / "config.json").write_text("{}")
    pending.seal()
    pending.commit()
    with pytest.raises(RecordError, match=r"without a Hugging Face model.*turnsmith export"):
        model_folder(run.path)
