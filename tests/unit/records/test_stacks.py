"""Processes that registered write their stacks when they are asked, and no others are touched."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from turnsmith.records.stacks import VARIABLE, collect_stacks

CHILD = """
import sys, time
from turnsmith.records.stacks import answer_for_stacks
answer_for_stacks("something else")
answer_for_stacks("the child")
answer_for_stacks("perhaps this", is_guess=True)
def wait_here():
    print("ready", flush=True)
    time.sleep(60)
wait_here()
"""


def test_a_process_that_hangs_tells_where(tmp_path: Path) -> None:
    folder = tmp_path / "stacks"
    command, variables = [sys.executable, "-c", CHILD], {VARIABLE: str(folder)}
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
    assert "in test_a_process_that_hangs_tells_where" in text
    began = time.monotonic()
    assert collect_stacks(folder, tmp_path / "all.txt") == ["the process that watches"]  # it is gone
    assert time.monotonic() - began < 0.5
