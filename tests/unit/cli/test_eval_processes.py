"""`turnsmith eval` of environments whose episodes disturb each other."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.check.environment.zoo.state import Variable

from turnsmith import RunFolder, read_episodes
from turnsmith.cli.main import main

GAME = f"{Variable.__module__}:Variable"
SHORT = ["inference.max_tokens=4", "inference.max_turns=2", "--episodes", "6"]


def test_they_are_refused_where_they_were_told_to_share_a_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", "tiny", "--output-dir", str(tmp_path), *SHORT, "environment.isolation=thread"]
    assert main(["eval", GAME, *words]) == 1
    assert "Episodes of Variable change what others see if they run in one process" in capsys.readouterr().err
    assert not list(tmp_path.glob("*/episodes*"))


@pytest.mark.nightly
def test_they_get_a_process_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnsmith.check.environment.run.SECONDS", 200.0)
    assert main(["eval", GAME, "--model", "tiny", "--output-dir", str(tmp_path), "--name", "mine", *SHORT]) == 0
    assert "So each gets a worker process to itself, which takes" in capsys.readouterr().out
    run = RunFolder.open(tmp_path / "mine")
    assert [event["kind"] for event in run.read_events()] == ["evaluation", "warning", "finished"]
    said = [{str(message["content"]) for message in episode.messages[2::2]} for episode in read_episodes(run.path)]
    assert [len(own) for own in said] == [1] * 6, said
    assert len(set[str].union(*said)) == 6, "each has seen its own number, and only that"
