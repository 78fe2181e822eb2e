"""After each file of end-to-end tests its run folders are verified: one that does not add up fails the file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TEST = """
import shutil
import pytest
from tests.unit.verify.sample_history import write_run

def test_sound(tmp_path):
    write_run(tmp_path)

{mark}
def test_damaged(tmp_path):
    shutil.rmtree(write_run(tmp_path).path / {deleted!r})
"""


def outcome(folder: Path, deleted: str, mark: str = "") -> str:
    """Run such a file of tests as CI does, with the hook of the end-to-end tests; returns what pytest prints."""
    file = folder / "test_runs.py"
    file.write_text(TEST.format(deleted=deleted, mark=mark))
    hook = ["-p", "tests.e2e.conftest", "-c", str(ROOT / "pyproject.toml"), "--basetemp", str(folder / "runs")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *hook, str(file)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False).stdout


@pytest.mark.nightly
def test_a_run_that_does_not_add_up_fails_unless_the_test_says_why(tmp_path: Path) -> None:
    violated = outcome(tmp_path, "checkpoints")
    assert "2 passed, 1 error" in violated
    assert "step 3: its checkpoint, the newest that the run reported, is not there." in violated
    assert "2 passed, 1 error" in outcome(tmp_path, "trained"), "training that records less than it should"
    assert "2 passed in" in outcome(tmp_path, "checkpoints", '@pytest.mark.damages_run_folders("on purpose")')
