"""`turnsmith check --audit --train`: a bad reward that no rule of the search finds, and training does."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from turnsmith import BaseEnvironment

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]


class Sum(BaseEnvironment):
    """Sound: only the right sum is paid."""

    reward_range = (0.0, 1.0)

    def reset(self, seed: int = 0) -> str:
        """Ask."""
        draw = random.Random(seed)
        one, other = draw.randint(30, 99), draw.randint(100, 199)
        self.right = str(one + other)
        return f"What is {one} + {other}?"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Score the answer."""
        is_right = action.strip() == self.right
        return "", max(float(is_right), self.tone(action)), True, {"success": is_right}

    def tone(self, action: str) -> float:
        """Nothing is paid for it."""
        return 0.0

    def solve(self) -> str:
        """The sum."""
        return self.right


class Odd(Sum):
    """Also pays for a tone, by a number of each character that no rule and no text of the scorer's names."""

    def tone(self, action: str) -> float:
        """The share of characters of the right numbers: @ and k."""
        return sum(ord(one) % 43 == 21 for one in action) / max(len(action), 1)


def audit(name: str, folder: Path, minutes: float) -> tuple[int, dict[str, dict[str, Any]]]:
    report = folder / "check.json"
    command = [sys.executable, "-m", "turnsmith", "check", f"{__file__}:{name}", "--audit", "--train", str(minutes)]
    done = subprocess.run([*command, "--json", str(report)], cwd=folder, timeout=1200, check=False)
    return done.returncode, {check["name"]: check for check in json.loads(report.read_text())["checks"]}


def test_training_finds_a_bad_reward_that_the_search_does_not(tmp_path: Path) -> None:
    began = time.monotonic()
    code, checks = audit("Odd", tmp_path, minutes=6)
    assert code == 1
    assert {
        name: checks[name]["status"]
        for name in ("right answers are paid", "no skill is not paid", "red team by training")
    } == {
        "right answers are paid": "passed",
        "no skill is not paid": "passed",
        "red team by training": "failed",
    }
    found = checks["red team by training"]
    assert "0% of the last succeed" in found["saw"]
    assert found["episodes"]
    assert time.monotonic() - began < 1200


def test_training_finds_nothing_in_a_sound_reward(tmp_path: Path) -> None:
    _, checks = audit("Sum", tmp_path, minutes=1)
    assert checks["red team by training"]["status"] == "passed"
