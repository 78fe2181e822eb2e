"""No part of a run calls anybody: a run in a network that leads nowhere sends no packet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import without_a_network

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nightly,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a network"),
]


def run_without_a_network(*command: str) -> dict[str, Any]:
    script = [sys.executable, without_a_network.__file__, *command]
    return json.loads(subprocess.run(script, stdout=subprocess.PIPE, timeout=600, check=True).stdout)


def test_an_attempt_to_call_somebody_is_seen() -> None:
    code = (
        "import urllib.request as r\ntry: r.urlopen('http://usage-stats.example.com', timeout=2)\nexcept OSError: pass"
    )
    assert "usage-stats" in str(run_without_a_network(sys.executable, "-c", code)["packets"])


def test_a_run_and_an_evaluation_call_nobody(tmp_path: Path) -> None:
    environment = f"{Path(__file__).parent / 'three_letters.py'}:ThreeLetters"
    program = [sys.executable, "-m", "turnsmith"]
    settings = ["--model", "tiny", f"checkpoint.output_dir={tmp_path}", "training.steps_per_epoch=3"]
    assert run_without_a_network(*program, "train", environment, *settings) == {"code": 0, "packets": []}
    evaluated = run_without_a_network(*program, "eval", environment, "--model", "tiny", "--episodes", "4")
    assert evaluated == {"code": 0, "packets": []}
