"""Trackers: real ones get every value under one run that ends, and none of them stops or delays training."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from turnsmith.config import ConfigStore, ImportName
from turnsmith.config_sources import to_dict
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


def make_folder(tmp_path: Path, *names: str) -> RunFolder:
    run, config = RunFolder.create(tmp_path, "watched"), ConfigStore()
    config.logging.trackers = [ImportName(name if name.islower() else f"{__name__}:{name}") for name in names]
    run.write_config(to_dict(config))
    return run


def open_own(tmp_path: Path, *names: str) -> tuple[Trackers, list[str]]:
    """Trackers of the user's own, and the list of warnings that they give."""
    warnings: list[str] = []
    config = SimpleNamespace(trainer=SimpleNamespace(logger=[]))
    return Trackers(config, str(make_folder(tmp_path, *names).path), {}, warnings.append), warnings


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


# ---- the real ones

_RUN = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from omegaconf import OmegaConf
from verl.utils import tracking  # takes seconds; the task runner has it by then
from turnsmith.trainer.verl import trackers
from turnsmith.trainer.verl.trackers import Trackers, tracker_variables

trackers._FINISH_SECONDS = 150.0  # a busy machine imports MLflow for longer than a run should wait
run_dir, name, records = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
config = OmegaConf.create({"trainer": {"logger": [name], "project_name": "letters", "experiment_name": "watched"}})
warnings, calls = [], []
calls.append(lambda: calls.append(Trackers(config, run_dir, tracker_variables(run_dir), warnings.append)))
def call(function, *args):  # as Ray does: each in whatever thread is free
    with ThreadPoolExecutor(1) as pool:
        pool.submit(function, *args).result()
call(calls[0])
assert list(config.trainer.logger) == []
for record in records:
    call(calls[1].log, record)
call(calls[1].finish)
print(json.dumps(warnings))
"""


def track(tmp_path: Path, name: str, **variables: str) -> tuple[Path, list[str]]:
    """Log three steps to a real tracker in a process of its own; return its folder, and the warnings."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed; the extra `dev` has it")
    run = make_folder(tmp_path, name)
    clean = {key: value for key, value in os.environ.items() if not key.startswith(trackers._PREFIXES)}
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(run.path), name, json.dumps(STEPS)],
        env=clean | variables,
        capture_output=True,
        text=True,
        timeout=280,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return run.path / "trackers", json.loads(done.stdout.splitlines()[-1])


def query(database: Path, sql: str) -> list[Any]:
    with sqlite3.connect(database) as connection:
        return connection.execute(sql).fetchall()


def test_tensorboard_has_every_value(tmp_path: Path) -> None:
    folder, warnings = track(tmp_path, "tensorboard")
    assert warnings == []
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    (file,) = (folder / "tensorboard").iterdir()
    values = [(event.step, one.tag, one) for event in EventFileLoader(str(file)).Load() for one in event.summary.value]
    assert [(step, tag, one.tensor.float_val[0]) for step, tag, one in values if tag == "reward/mean"] == LOGGED
    assert {tag for _, tag, _ in values} == {"step", "epoch", "reward/mean"}


def wandb_records(file: Path) -> Iterator[bytes]:
    """The records of a W&B file: LevelDB's log format, blocks of 32 KiB of chunks, after 7 bytes of its own."""
    data, position, record = file.read_bytes(), 7, b""
    while position + 7 <= len(data):
        if position % 32768 > 32768 - 7:
            position += -position % 32768
        length, kind = struct.unpack_from("<4xHB", data, position)  # whole, first, middle or last chunk
        record += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            yield record
            record = b""


def test_wandb_has_every_value_in_one_offline_run(tmp_path: Path) -> None:
    folder, warnings = track(tmp_path, "wandb", WANDB_MODE="offline")
    assert warnings == []
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    records: list[Any] = [Record.FromString(data) for data in wandb_records(file)]
    (run,) = [(record.run.project, record.run.display_name) for record in records if record.HasField("run")]
    assert run == ("letters", "watched")
    histories = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    assert [(one["_step"], "reward/mean", one["reward/mean"]) for one in histories] == LOGGED
    assert any(record.HasField("exit") for record in records), "the run has ended"


def test_mlflow_has_every_value_in_one_run_that_ended(tmp_path: Path) -> None:
    folder, warnings = track(tmp_path, "mlflow")
    assert warnings == []
    database = folder / "mlflow.db"
    assert query(database, "select name, status from runs") == [("watched", "FINISHED")]
    assert ("letters",) in query(database, "select name from experiments")
    assert query(database, "select step, key, value from metrics where key = 'reward/mean' order by step") == LOGGED


def test_mlflow_that_cannot_be_reached_is_a_warning(tmp_path: Path) -> None:
    _, (warning,) = track(tmp_path, "mlflow", MLFLOW_TRACKING_URI="sqlite:////proc/nowhere/mlflow.db")
    assert warning.startswith("The tracker mlflow could not be opened, and the run goes on without it (")
    assert "/proc/nowhere" in warning, "what verl only logs"


def test_trackio_has_every_value_in_one_run(tmp_path: Path) -> None:
    folder, warnings = track(tmp_path, "trackio")
    assert warnings == []
    (database,) = (folder / "trackio").glob("letters*.db")
    rows = query(database, "select run_name, step, metrics from metrics order by step")
    assert {name for name, _, _ in rows} == {"watched"}
    assert [(step, "reward/mean", json.loads(metrics)["reward/mean"]) for _, step, metrics in rows] == LOGGED
