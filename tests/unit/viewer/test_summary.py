"""`turnsmith runs`: the list, one run in a few lines, and how a run's state is determined."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.unit.viewer.sample_runs import record, training_run

from turnsmith import RunFolder
from turnsmith.cli.main import main
from turnsmith.records.run_state import RunState, state_of, this_process


def test_the_list_has_a_line_for_each_run_the_newest_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training_run(tmp_path)
    second = RunFolder.create(tmp_path, "Other-20260102-120000")
    second.append_event("training", steps=9, **this_process())
    second.append_metrics(record(1))
    (RunFolder.create(tmp_path, "broken").path / "metrics.jsonl").write_text("nonsense\n{}\n")
    (tmp_path / "no-run").mkdir()
    assert main(["runs", str(tmp_path)]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "state", "steps", "reward", "warnings", "environment", "model", "started"]
    cells = [line.split() for line in lines]
    assert cells[0][:2] == ["broken", "damaged"]
    assert cells[1][:5] == ["Game-20260101-120000", "finished", "4", "0.400", "1"]
    assert cells[1][5:7] == ["Board", "HuggingFaceTB/SmolLM2-135M-Instruct"]
    assert cells[2][:4] == ["Other-20260102-120000", "running", "1", "0.100"]


def test_one_run_in_a_few_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = training_run(tmp_path)
    assert main(["runs", "show", str(run.path)]) == 0
    shown = capsys.readouterr().out
    for part in (
        "Game-20260101-120000: finished",
        "Board · HuggingFaceTB/SmolLM2-135M-Instruct · grpo, 32 episodes a step in groups of 8",
        "0.100 to 0.400",
        "episodes       16: 16 completed",
        "step time      2.0 s on average: generate 75%, update_actor 25%",
        "Why is the gradient zero?",
        "It was zero in 1 of 4 steps, most recently in step 4.",
        "From step 4: The gradient is zero: all the same.",
        "episodes to look at: 4-1, x",
        "warning at step 1: Turns were cut.",
        "ended at step 3",
    ):
        assert part in shown
    assert main(["runs", str(run.path)]) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize(
    ("metrics", "because"),
    [
        ({"reward/min": 2.0, "reward/max": 2.0}, "the same reward, 2"),
        ({"groups/constant": 4, "groups/total": 4}, "within every group all episodes got the same reward"),
        ({"clip_fraction": 0.95}, "clipped"),
        ({}, "although the rewards differ"),
    ],
)
def test_a_run_without_warnings_still_explains_a_zero_gradient(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], metrics: dict[str, float], because: str
) -> None:
    run = RunFolder.create(tmp_path, "old")
    run.append_metrics(record(1, grad_norm=0.0, **metrics))
    assert main(["runs", "show", str(run.path)]) == 0
    assert because in capsys.readouterr().out


@pytest.mark.parametrize("words", [["show"], ["show", "a", "b"], ["a", "b"], ["gone"], ["show", "gone"]])
def test_a_wrong_argument_is_one_line_on_stderr(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["runs", *words]) == 2
    assert capsys.readouterr().err.startswith("turnsmith: ")


def test_a_run_that_was_killed_is_not_taken_for_running() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        begun = {"kind": "training", "pid": child.pid, "host": platform.node()}
        assert state_of([begun]) is RunState.RUNNING
        assert state_of([{**begun, "born": 1}]) is RunState.DIED  # another process has this pid now
        child.kill()
    assert state_of([begun]) is RunState.DIED


def test_a_run_of_another_machine_is_judged_by_its_last_write() -> None:
    begun = {"kind": "training", "pid": 1, "host": "elsewhere"}
    assert state_of([begun], time.time() - 5) is RunState.RUNNING
    assert state_of([begun], time.time() - 5000) is RunState.UNCLEAR
    assert state_of([]) is RunState.UNCLEAR
    assert state_of([begun, {"kind": "failed"}, {"kind": "checkpoint"}]) is RunState.FAILED
    assert state_of([begun, {"kind": "finished"}, {"kind": "training", **this_process()}]) is RunState.RUNNING
