"""Runs that are made to be measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from turnsmith.check.plan import reference as module
from turnsmith.check.plan.forecast import Overhead
from turnsmith.records.run_folder import RunFolder


class _Train:
    """Instead of a process: makes the run folder that `turnsmith train` would make."""

    def __init__(self, command: list[str], **streams: Any) -> None:
        own = dict(word.split("=", 1) for word in command if "=" in word)
        RunFolder.create(own["checkpoint.output_dir"], own["checkpoint.run_name"]).append_metrics({"step": 1})
        self.pid = 1

    def wait(self) -> int:
        return 0


def test_a_run_that_was_interrupted_is_not_read_instead_of_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RunFolder.create(tmp_path, "run")  # interrupted before its first step
    monkeypatch.setattr(module.subprocess, "Popen", _Train)
    monkeypatch.setattr(module, "read_measured_run", lambda path, *_: RunFolder.open(path).read_metrics())
    assert module.measured_run([], tmp_path, "run") == [{"step": 1}]


def test_what_was_measured_is_kept_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Overhead(generate=(0.5, 0.25), rest=(1, 0.0))
    monkeypatch.setattr(module, "cache_folder", lambda: tmp_path / "models")
    monkeypatch.setattr(module, "measure_reference", lambda: module.Reference(clock, Overhead(), {"all": 2.0}))
    assert module.reference() == module.reference() == module.Reference(clock, Overhead(), {"all": 2.0})
    (file,) = tmp_path.rglob("*.json")
    assert file.parent.name == "plan"
