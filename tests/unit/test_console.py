"""The commands that README, the quickstart and the recipes have a user type: the quick ones run here, as they are."""

from __future__ import annotations

import io
import shlex
import sys
from pathlib import Path

import pytest
from tests.console import PLACES, commands, make_folder, place, title, typed_in

from turnsmith.cli.main import main

TRAINING = sorted({line.removesuffix(" --dry-run") for _, line in commands() if line.startswith("turnsmith train ")})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the reader is in."""
    monkeypatch.chdir(make_folder(tmp_path))
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def test_every_command_is_executed_or_says_why_not() -> None:
    where = {command: place(command) for _, command in commands()}
    assert {"unit", "e2e", "nightly"} <= set(where.values())
    wrong = [
        command for command, one in where.items() if one not in ("unit", "e2e", "nightly") and "not run: " not in one
    ]
    assert wrong == []
    assert len(set(where.values())) == len({one for _, one in PLACES}), "a reason is for no command"


@pytest.mark.parametrize("command", TRAINING, ids=title)
def test_a_training_run_is_accepted_as_typed(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("verl")
    # The checks, which take seconds: in nightly, where it trains.
    assert main([*shlex.split(command)[1:], "--dry-run", "training.check=false"]) == 0
    printed = capsys.readouterr().out
    assert "# turnsmith: all settings" in printed
    assert "# verl: the resulting config" in printed
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("command", [command for command in typed_in("unit") if " play " in command], ids=title)
def test_a_person_plays(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(map(str, range(1, 10)))))
    assert main(shlex.split(command)[1:]) == 0
    assert "Outcome: completed." in capsys.readouterr().out
