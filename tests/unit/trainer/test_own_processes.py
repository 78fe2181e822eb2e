"""A run whose episodes disturb each other gives each environment a process of its own, and keeps that."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.check.environment.zoo.state import Variable

from turnsmith.config import ConfigStore
from turnsmith.config_sources import load
from turnsmith.records.run_folder import RunFolder
from turnsmith.trainer import RayPPOTrainer, quick_checks
from turnsmith.trainer.quick_checks import QuickResult, check_before_start


def test_a_process_for_each_environment_is_a_setting_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = RayPPOTrainer(config := ConfigStore(), Variable)
    found = QuickResult([], made.parts.environment.in_own_processes([0]))
    monkeypatch.setattr(quick_checks, "run_quick_checks", lambda *_: found)
    run = RunFolder.create(tmp_path, "run")
    changed, parts = check_before_start(config, made.parts, "tiny", run, print)
    assert load(run.path / "config.yaml").environment.isolation == changed.environment.isolation == "own_process"
    assert parts.environment.isolated().mode == parts.validation.environment.mode == "own_process"
    assert config.environment.isolation == "auto", "the user's own settings are left alone"


@pytest.mark.nightly
def test_fit_gives_environments_that_disturb_each_other_a_process_for_each(
    tmp_path: Path, tiny_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnsmith.trainer.quick_checks.SECONDS", 200.0)
    made = RayPPOTrainer(ConfigStore(), Variable)
    run = RunFolder.create(tmp_path, "run")
    _, parts = check_before_start(made.config, made.parts, tiny_folder, run, print)
    assert parts.environment.isolated().mode == "own_process"
    [warning] = [event for event in run.read_events() if event["kind"] == "warning"]
    assert "So each gets a worker process to itself, which takes" in str(warning)
