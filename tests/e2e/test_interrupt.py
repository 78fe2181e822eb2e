"""Ctrl-C during a step ends Ray and every process of the run within 10 s, and the run folder stays readable."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from tests.e2e.marked_processes import processes_with
from turnsmith.records.episodes import read_episodes
from turnsmith.records.run_folder import RunFolder

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]


def _wait_for_a_step(folder: Path, process: subprocess.Popen[bytes]) -> RunFolder:
    until = time.monotonic() + 240
    while time.monotonic() < until:
        assert process.poll() is None, "the run ended before its first step"
        for path in folder.glob("ThreeLetters-*"):
            run = RunFolder.open(path)
            if run.read_metrics():
                return run
        time.sleep(0.1)
    pytest.fail("no step within 240 s")


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    command = [sys.executable, "-m", "turnsmith", "train", f"{Path(__file__).parent / 'three_letters.py'}:ThreeLetters"]
    settings = ["--model", "tiny", f"checkpoint.output_dir={tmp_path}", "training.steps_per_epoch=1000"]
    process = subprocess.Popen(
        [*command, *settings],
        env=os.environ | {"TURNSMITH_TEST_MARK": mark},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        run = _wait_for_a_step(tmp_path, process)
        assert len(processes_with(mark)) > 5
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)  # what a terminal does
        assert process.wait(timeout=10) == 130
        while processes_with(mark) and time.monotonic() - began < 10:
            time.sleep(0.1)
        assert not [entry.cmdline() for entry in processes_with(mark)]
    finally:
        for left in processes_with(mark):
            left.kill()
    again = RunFolder.open(run.path)
    assert again.read_metrics()[0]["step"] == 1
    assert read_episodes(run.path, step=1)
