"""Trackers of the user's own: each has a thread of its own, and none of them stops or delays training."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from turnsmith.config import ConfigStore, ImportName
from turnsmith.records.run_folder import RunFolder
from turnsmith.trainer.verl import trackers
from turnsmith.trainer.verl.trackers import Trackers

STEPS = [{"step": step, "epoch": 0, "reward/mean": step / 4, "note": "not a number"} for step in (1, 2, 3)]
LOGGED = [(step, "reward/mean", step / 4) for step in (1, 2, 3)]


class Own:
    """A tracker of the user's own, which notes its thread."""

    logged: list[dict[str, float]]
    threads: set[int]

    def __init__(self, run_dir: str, settings: Any) -> None:
        type(self).logged, type(self).threads = [], {threading.get_ident()}

    def log(self, record: dict[str, float]) -> None:
        self.threads.add(threading.get_ident())
        self.logged.append(record)

    def finish(self) -> None:
        self.threads.add(threading.get_ident())


class FailsToOpen(Own):
    def __init__(self, run_dir: str, settings: Any) -> None:
        raise PermissionError("no such account")


class FailsToLog(Own):
    calls = 0

    def log(self, record: dict[str, float]) -> None:
        type(self).calls += 1
        sys.exit("quota exceeded")


class FailsToFinish(Own):
    def finish(self) -> None:
        raise ConnectionError("the server is gone")


class Hangs(Own):
    may_go_on: threading.Event

    def log(self, record: dict[str, float]) -> None:
        self.may_go_on.wait(20)
        super().log(record)


def open_own(tmp_path: Path, *names: str) -> tuple[Trackers, list[str]]:
    """Trackers of the user's own, and the list of warnings that they give."""
    warnings: list[str] = []
    theirs, config = SimpleNamespace(trainer=SimpleNamespace(logger=[])), ConfigStore()
    config.logging.trackers = [ImportName(f"{__name__}:{name}") for name in names]
    run = RunFolder.create(tmp_path, "watched")
    return Trackers(theirs, config, str(run.path), {}, warnings.append), warnings


def in_another_thread(function: Callable[..., None], *args: Any) -> None:
    """Call it as Ray does: each method of an actor in whatever thread is free."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(function, *args).result()


def test_one_thread_opens_a_tracker_logs_to_it_and_finishes_it(tmp_path: Path) -> None:
    opened, warnings = open_own(tmp_path, "Own")
    for record in STEPS:
        in_another_thread(opened.log, record)
    in_another_thread(opened.finish)
    assert [record["step"] for record in Own.logged] == [1, 2, 3]
    assert "note" not in Own.logged[0]
    assert len(Own.threads) == 1
    assert threading.get_ident() not in Own.threads
    assert warnings == []


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("FailsToOpen", r"could not be opened, and the run goes on without it \(PermissionError: no such account\)"),
        ("FailsToLog", r"could not be written to, and the run .* \(SystemExit: quota exceeded\)\. metrics\.jsonl"),
        ("FailsToFinish", r"could not be finished, .* \(ConnectionError: the server is gone\)"),
    ],
)
def test_an_error_is_one_warning_and_the_others_go_on(tmp_path: Path, name: str, sentence: str) -> None:
    opened, warnings = open_own(tmp_path, name, "Own")
    for record in STEPS:
        opened.log(record)
    opened.finish()
    assert [record["step"] for record in Own.logged] == [1, 2, 3]
    (warning,) = warnings
    assert re.match(rf"The tracker {__name__}:{name} {sentence}", warning), warning
    assert FailsToLog.calls <= 1, "it is not called again"


def test_a_tracker_that_hangs_delays_no_step_and_not_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "_MOST_WAITING", 4)
    monkeypatch.setattr(trackers, "_FINISH_SECONDS", 0.2)
    Hangs.may_go_on = threading.Event()
    opened, warnings = open_own(tmp_path, "Hangs")
    began = time.monotonic()
    for step in range(100):
        opened.log({"step": step})
    opened.finish()
    assert time.monotonic() - began < 15, "it sleeps for 20"
    behind, unfinished = warnings
    assert "is 4 steps behind, and misses steps from now on" in behind
    assert "did not finish within 0 seconds" in unfinished
    Hangs.may_go_on.set()
    monkeypatch.setattr(trackers, "_FINISH_SECONDS", 20.0)
    opened.finish()
    assert 4 <= len(Hangs.logged) <= 5, "what is kept for it is bounded"
