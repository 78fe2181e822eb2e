"""Registered processes write their stack traces when asked, and no other process is signalled."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from turnsmith.records.stacks import VARIABLE, collect_stacks

CHILD = """
import sys, threading, time
from turnsmith.records.stacks import enable_stack_dump
enable_stack_dump("something else")
enable_stack_dump("the child")
enable_stack_dump("perhaps this", is_guess=True)
def wait_in_a_thread():
    time.sleep(60)
for _ in range(150):
    threading.Thread(target=wait_in_a_thread, daemon=True).start()
def wait_here():
    print("ready", flush=True)
    time.sleep(60)
wait_here()
"""


def test_a_hanging_process_shows_where_it_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a new run" / "stacks"
    command, variables = [sys.executable, "-c", CHILD], {**os.environ, VARIABLE: str(folder)}
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            parts = collect_stacks(folder, tmp_path / "all.txt")
            assert child.poll() is None
        finally:
            child.kill()
    assert parts == ["the child", "the process that watches"]
    text = (tmp_path / "all.txt").read_text()
    assert "in wait_here" in text
    assert "in wait_in_a_thread" in text
    # The traces follow the name of their process.
    assert text.index("in wait_here") < text.index("the process that watches, ") < text.index("in test_a_hanging")
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    assert collect_stacks(folder, tmp_path / "all.txt") == ["the process that watches"]  # the child is dead
    assert waits == []
