"""A process that is lost in the middle of a weight transfer ends it for all in time, and the next one succeeds.

The engine is the one that GPUs use; see `lost_in_transfer.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TIME_OUT = 4.0
"""Of the engine. A process that is only stopped is noticed by nothing else."""
STOPPED = 2 * TIME_OUT + 2
"""How long it may take then: a bucket may take twice as long as a message."""


def rounds(folder: Path, number: int, how: str, seed: int = 1) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.unit.trainer.lost_in_transfer", folder, number, how, seed, TIME_OUT]
    done = subprocess.run(
        list(map(str, command)), cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == number
    failed = [one for one in found if one["failed"]]
    print(f"{len(failed)} of {number} transfers met the loss, {max(one['seconds'] for one in found)} s at most")
    assert all(one["goes_on"] and one["in_words"] for one in found), found
    assert len(failed) >= number / 2, "too many were lost after the transfer"
    return found


def assert_in_time(found: list[dict[str, Any]], seconds: float) -> None:
    assert max(one["seconds"] for one in found) < seconds, found


def test_a_killed_server_ends_the_transfer_at_once_and_the_next_one_succeeds(tmp_path: Path) -> None:
    assert_in_time(rounds(tmp_path, 4, "KILL"), TIME_OUT)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", ["KILL", "STOP"])
def test_twenty_of_twenty(tmp_path: Path, how: str) -> None:
    limit = {"KILL": TIME_OUT, "STOP": STOPPED}
    assert_in_time(rounds(tmp_path, 20, how, seed=7), limit[how])
