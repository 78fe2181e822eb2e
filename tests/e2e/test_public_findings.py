"""What the audit found in reasoning-gym and verl, with scripts that import nothing of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.packages import install
from tests.e2e.test_reasoning_gym import PACKAGES

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
SCRIPTS = sorted((Path(__file__).parents[2] / "benchmarks" / "public_findings").glob("*.py"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("packages")
    install(made, *PACKAGES.split())
    return made


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_the_finding_is_there(script: Path, folder: Path) -> None:
    lines = [line for line in script.read_text().splitlines() if line.strip() and not line.startswith('"""')]
    assert len(lines) <= 10
    assert "turnsmith" not in script.read_text()
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
