"""`turnsmith check --plan`, without measuring anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from turnsmith.check.plan.workload import EpisodeSample, EpisodeTurn
from turnsmith.cli.main import main

_GAME = "turnsmith.env.examples:GuessNumber"
_SAMPLE = EpisodeSample("a test", 100, [[EpisodeTurn(10, 0, 0.0)]])


class _Stopped(Exception):
    """Everything that is of interest has been called."""


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the forecast, or else the sample, was to be made of."""
    found: list[Any] = []

    def stop(*given: Any, **named: Any) -> None:
        found.extend([*given, *named.values()])
        raise _Stopped

    monkeypatch.setattr("turnsmith.check.plan.reference.reference", lambda **_: None)
    monkeypatch.setattr("turnsmith.check.plan.report.forecast_on_cpu", stop)
    monkeypatch.setattr("turnsmith.check.plan.cpu.evaluate", stop)
    return found


def test_a_setting_with_a_colon_is_no_environment(tmp_path: Path, given: list[Any]) -> None:
    file = tmp_path / "sample.json"
    file.write_text(json.dumps({"sample": _SAMPLE.as_dict()}))
    with pytest.raises(_Stopped):
        main(["check", "--plan", "environment.where=tcp://h:1", "--from", str(file), "--model", "tiny"])
    assert given[0].environment.where == "tcp://h:1"
    assert given[-1] is None
    given.clear()
    with pytest.raises(_Stopped):
        main(["check", "--plan", _GAME, "environment.where=tcp://h:1", "--from", str(file), "--model", "tiny"])
    assert given[-1].name == "GuessNumber"
    assert given[-1].config.where == "tcp://h:1"


def test_a_sample_is_played_with_the_players_and_the_failure_policy_of_the_run(given: list[Any]) -> None:
    settings = ["players.opponent=frozen", "failures.environment=drop", "inference.temperature=0.5"]
    with pytest.raises(_Stopped):
        main(["check", "--plan", _GAME, "--model", "tiny", *settings])
    plan = given[-1]
    assert plan.players.settings["opponent"].who == "frozen"
    assert plan.failures.environment.decision.value == "dropped"
    assert plan.sampling.temperature == 0.5


def test_a_sample_is_played_with_the_thinking_of_the_run(given: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--plan", _GAME, "--model", "tiny", "inference.thinking=false"]) != 0
    assert "inference.thinking" in capsys.readouterr().err
    assert not given
