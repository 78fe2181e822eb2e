"""Real trackers have every value of a run: TensorBoard for every change, W&B, MLflow and Trackio every night."""

from __future__ import annotations

import importlib.util
import json
import os
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from turnsmith.records.run_folder import RunFolder
from turnsmith.trainer.verl import trackers

pytestmark = pytest.mark.e2e
STEPS = [{"step": step, "epoch": 0, "reward/mean": step / 4, "note": "not a number"} for step in (1, 2, 3)]
LOGGED = [(step, "reward/mean", step / 4) for step in (1, 2, 3)]
_RUN = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from omegaconf import OmegaConf
from verl.utils import tracking  # takes seconds; the task runner has it by then
from turnsmith.config import ConfigStore
from turnsmith.trainer.verl import trackers
from turnsmith.trainer.verl.trackers import Trackers, tracker_variables

trackers._FINISH_SECONDS = 150.0  # a busy machine imports MLflow for longer than a run should wait
run_dir, name, records = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
config = OmegaConf.create({"trainer": {"logger": [name], "project_name": "letters", "experiment_name": "watched"}})
warnings, calls = [], []
variables = tracker_variables(run_dir)
calls.append(lambda: calls.append(Trackers(config, ConfigStore(), run_dir, variables, warnings.append)))
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
    run = RunFolder.create(tmp_path, "watched")
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


@pytest.mark.nightly
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


@pytest.mark.nightly
def test_mlflow_has_every_value_in_one_run_that_ended(tmp_path: Path) -> None:
    folder, warnings = track(tmp_path, "mlflow")
    assert warnings == []
    database = folder / "mlflow.db"
    assert query(database, "select name, status from runs") == [("watched", "FINISHED")]
    assert ("letters",) in query(database, "select name from experiments")
    assert query(database, "select step, key, value from metrics where key = 'reward/mean' order by step") == LOGGED


@pytest.mark.nightly
def test_mlflow_that_cannot_be_reached_is_a_warning(tmp_path: Path) -> None:
    # A port on which nothing listens; a database that cannot be opened MLflow would try again and again.
    nowhere = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    _, (warning,) = track(tmp_path, "mlflow", **nowhere, NO_PROXY="127.0.0.1")
    assert warning.startswith("The tracker mlflow could not be opened, and the run goes on without it (")
    assert "127.0.0.1" in warning, "what verl only logs"


@pytest.mark.nightly
def test_trackio_has_every_value_in_one_run(tmp_path: Path) -> None:
    folder, warnings = track(tmp_path, "trackio")
    assert warnings == []
    (database,) = (folder / "trackio").glob("letters*.db")
    rows = query(database, "select run_name, step, metrics from metrics order by step")
    assert {name for name, _, _ in rows} == {"watched"}
    assert [(step, "reward/mean", json.loads(metrics)["reward/mean"]) for _, step, metrics in rows] == LOGGED
