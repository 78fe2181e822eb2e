"""A run whose episodes disturb each other gives each environment a process of its own, and keeps that."""
# pyright: reportPrivateUsage=false

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.check.zoo.state import Variable

from turnsmith.config import ConfigStore
from turnsmith.config_sources import load
from turnsmith.records.run_folder import RunFolder
from turnsmith.trainer import RayPPOTrainer


def test_a_process_for_each_environment_is_a_setting_of_the_run(tmp_path: Path) -> None:
    made = RayPPOTrainer(config := ConfigStore(), Variable)
    made._use(made.environment.in_own_processes([0]))
    made._inputs().write_settings(RunFolder.create(tmp_path, "run"))
    assert load(tmp_path / "run" / "config.yaml").environment.isolation == "own_process"
    assert made._inputs().environment.isolated().mode == made.validation.environment.mode == "own_process"
    assert config.environment.isolation == "auto", "the user's own settings are left alone"


@pytest.mark.nightly
def test_fit_gives_environments_that_disturb_each_other_a_process_for_each(
    tmp_path: Path, tiny_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnsmith.trainer.quick_checks.SECONDS", 200.0)
    made = RayPPOTrainer(ConfigStore(), Variable)
    made.run = RunFolder.create(tmp_path, "run")
    made._check(tiny_folder)
    assert made._inputs().environment.isolated().mode == "own_process"
    [warning] = [event for event in made.run.read_events() if event["kind"] == "warning"]
    assert "So each gets a worker process to itself, which takes" in str(warning)
