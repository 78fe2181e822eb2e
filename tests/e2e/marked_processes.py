"""Finds the processes of a run that a test started, its workers and theirs included."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import psutil


def run_program(module: str, *arguments: object, timeout: float) -> Any:
    """Run a module of the tests as a program, and return the JSON of its last line; no process is left of it."""
    mark = uuid.uuid4().hex
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, *map(str, arguments)],
            cwd=Path(__file__).parents[2],
            env=os.environ | {"TURNSMITH_TEST_MARK": mark},
            capture_output=True,
            text=True,
            timeout=timeout,
        )
    finally:
        for left in processes_with(mark):
            left.kill()
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def command_of(process: psutil.Process) -> str:
    """Its command line; empty if it is gone, or dead and not yet gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def processes_with(mark: str) -> list[psutil.Process]:
    """All processes that inherited `TURNSMITH_TEST_MARK`, with this value."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TURNSMITH_TEST_MARK") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.AccessDenied, psutil.NoSuchProcess):
            continue
    return found
