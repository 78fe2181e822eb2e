"""A taskset of verifiers 0.4, with the real package in an environment of its own, audited by its name."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.e2e.packages import make_environment

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
ROOT = Path(__file__).parents[2]
TASKSET = """
import verifiers.v1 as vf

__all__ = ["Doubling"]


class Row(vf.TaskData):
    answer: int


class Task(vf.Task[Row]):
    @vf.reward
    async def says_it(self, trace: vf.Trace) -> float:
        return float(str(self.data.answer) in trace.last_reply)


class Config(vf.TasksetConfig):
    rows: int = 40


class Doubling(vf.Taskset[Task, Config]):
    def load(self):
        rows = [Row(idx=n, prompt=f"What is {n} + {n}?", answer=2 * n) for n in range(50, 50 + self.config.rows)]
        return [Task(row, self.config.task) for row in rows]
"""


def test_a_taskset_that_pays_any_text_with_the_answer_is_found(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "venv", ("verifiers==0.4.0", str(ROOT)))
    (tmp_path / "doubling_v1.py").write_text(TASKSET)
    words = ["verifiers:doubling-v1", "--audit", "--json", "told.json", "environment.rows=30"]
    done = subprocess.run([python, "-m", "turnsmith", "check", *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    told = {one["code"]: one for one in json.loads((tmp_path / "told.json").read_text())["checks"]}
    assert told["right-unpaid"]["saw"] == "The solutions of 16 starts get 1 on average."
    assert told["hedge-paid"]["status"] == "failed"
    words = ["verifiers:no-such-taskset", "--audit"]
    done = subprocess.run([python, "-m", "turnsmith", "check", *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "verifiers:no-such-taskset cannot be made" in done.stderr
