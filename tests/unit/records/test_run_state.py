"""The state of a run, from its last event, its process or the time of its last write."""

from __future__ import annotations

import os
import platform
import time

import pytest

from turnsmith.records.run_state import RunState, process_start, state_of, this_process

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("last_write", "state"),
    [(NOW - 899.9, RunState.RUNNING), (NOW - 900.0, RunState.UNCLEAR), (None, RunState.UNCLEAR)],
)
def test_a_run_of_another_host_is_running_if_it_wrote_in_the_last_quarter_of_an_hour(
    monkeypatch: pytest.MonkeyPatch, last_write: float | None, state: RunState
) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)
    for begun in ([], [{"kind": "training", "host": "elsewhere", "pid": os.getpid()}], [{"kind": "training"}]):
        assert state_of(begun, last_write) is state


def test_the_last_beginning_or_end_counts_and_nothing_else() -> None:
    begun, ended = {"kind": "training", **this_process()}, {"kind": "failed"}
    assert state_of([begun, ended, begun]) is RunState.RUNNING
    assert state_of([ended, begun, ended, {"kind": "warning"}]) is RunState.FAILED
    assert [state_of([{"kind": kind}]).value for kind in ("finished", "stopped", "preempted")] == [
        "finished",
        "stopped",
        "preempted",
    ]


@pytest.mark.parametrize(
    "other",
    [{"pid": 0, "born": None}, {"pid": -1, "born": None}, {"pid": 2**22 + 1}, {"born": 1}],
    ids=["group", "all", "none", "a later process with its id"],
)
def test_a_process_that_is_gone_has_died(other: dict[str, int | None]) -> None:
    assert state_of([{"kind": "training", **this_process(), **other}]) is RunState.DIED


def test_without_the_time_of_its_start_the_id_of_a_process_is_enough() -> None:
    begun = {"kind": "training", "host": platform.node(), "pid": os.getpid()}
    assert state_of([begun]) is state_of([{**begun, "pid": 1}]) is RunState.RUNNING
    assert process_start(2**22 + 1) is None
