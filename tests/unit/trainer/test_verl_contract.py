"""Asks `verl_behaviour.py`, in processes of its own, whether verl and turnsmith still do together what they did.

`test_verl_members.py` has what is relied on in verl's source.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.trainer.verl_behaviour import CPU, UNCHOSEN


def ask_processes() -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("VERL_", "TURNSMITH_"))}
    asked = subprocess.run(
        [sys.executable, "-m", "tests.unit.trainer.verl_behaviour"],
        cwd=Path(__file__).parents[3],
        env=clean,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert asked.returncode == 0, f"The process that imports verl failed: {asked.stderr[-2000:]}"
    return json.loads(asked.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What was found, check by check; asked once, also when several pytest processes share the tests."""
    from filelock import FileLock

    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    kept = folder / "verl_answers.json"
    with FileLock(folder / "verl_answers.lock"):
        if not kept.exists():
            kept.write_text(json.dumps(ask_processes()))
    return json.loads(kept.read_text())


@pytest.mark.parametrize("name", [*CPU, *UNCHOSEN])
def test_with_verl(name: str, answers: dict[str, str]) -> None:
    if answers[name]:
        pytest.fail(answers[name], pytrace=False)
