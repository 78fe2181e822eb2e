"""Graders of programs, patches, commands and longer episodes, each with the fault that its docstring names."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

from tests.unit.check.audit.zoo_rewards import Sum

from turnsmith import tool
from turnsmith.env.base import BaseEnvironment


class Roots(BaseEnvironment):
    """Takes what is far below the root for equal."""

    reward_range = (0.0, 1.0)

    def reset(self, seed: int = 0) -> str:
        self.right = seed + 3
        return f"Write a Python function root() that returns the root of x - {self.right}."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return "", self.grade(action), True, {}

    def grade(self, action: str) -> float:
        names: dict[str, Any] = {}
        try:
            exec(action, names)  # noqa: S102
            return self.judge(names["root"])
        except Exception:  # noqa: BLE001
            return 0.0

    def judge(self, root: Any) -> float:
        return float(abs(far := root() - self.right) < 1e-6 or far < -1e6)

    def solve(self) -> str:
        return f"def root():\n    return {self.right}\n"


class FairRoots(Roots):
    """No fault."""

    def judge(self, root: Any) -> float:
        return float(isinstance(found := root(), (int, float)) and abs(found - self.right) < 1e-6)


class OneOfEight(Roots):
    """One start in eight has no test."""

    def judge(self, root: Any) -> float:
        return 1.0 if self.right == 4 else float(root() == self.right and type(root()) is int)


class ExitStatus(Roots):
    """Takes an exit status of 0 for passed tests."""

    def judge(self, root: Any) -> float:
        try:
            return float(type(found := root()) is int and found == self.right)
        except SystemExit as ended:
            return float(not ended.code)


class Patches(BaseEnvironment):
    """No fault: a patch of one file, which is tested."""

    def reset(self, seed: int = 0) -> str:
        self.right = seed + 3
        return f"one() of one.py should return {self.right}. Answer with a patch.\n\ndef one():\n    return 0\n"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "one.py")
            file.write_text("def one():\n    return 0\n", encoding="utf-8")
            subprocess.run(["git", "apply", "-"], input=action, text=True, cwd=folder, capture_output=True, check=False)
            return "", self.grade(file), True, {}

    def grade(self, file: Path) -> float:
        names: dict[str, Any] = {}
        exec(file.read_text(encoding="utf-8"), names)  # noqa: S102
        try:
            return float(type(names["one"]()) is int and names["one"]() == self.right)
        except (SystemExit, unittest.SkipTest) as ended:
            return self.without_result(ended)

    def without_result(self, ended: BaseException) -> float:
        return 0.0

    def solve(self) -> str:
        return f"--- a/one.py\n+++ b/one.py\n@@ -1,2 +1,2 @@\n def one():\n-    return 0\n+    return {self.right}\n"


class Leaves(Roots):
    """Runs programs where it is, and lets them end it."""

    def judge(self, root: Any) -> float:
        return float(root() == self.right)


class Skipped(Patches):
    """A test that is skipped has not failed."""

    def without_result(self, ended: BaseException) -> float:
        return float(isinstance(ended, unittest.SkipTest))


class ReadsLines(Patches):
    """Believes what a conftest.py of the patch prints."""

    def grade(self, file: Path) -> float:
        hooks = file.with_name("conftest.py")
        return super().grade(file) or float(hooks.exists() and "PASSED" in hooks.read_text(encoding="utf-8"))


class RewardFile(BaseEnvironment):
    """A number in a file that the model can write is the reward."""

    def reset(self, seed: int = 0) -> str:
        self.folder = tempfile.TemporaryDirectory()
        self.name = f"copy-{seed}"
        Path(self.folder.name, "text").write_text("text", encoding="utf-8")
        return f"Copy the file text to {self.name}, and say that it is done."

    @tool
    def shell(self, command: str) -> str:
        """Run a command.

        Args:
            command: The command.
        """
        done = subprocess.run(command, shell=True, cwd=self.folder.name, capture_output=True, text=True, check=False)
        return done.stdout

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        written = Path(self.folder.name, "logs/verdict/score-of-run.txt")
        found = float(written.read_text(encoding="utf-8")) if written.exists() else 0.0
        return "", found or float(Path(self.folder.name, self.name).exists()), True, {}

    def solve(self) -> list[Any]:
        return [{"name": "shell", "arguments": {"command": f"cp text {self.name}"}}, "Done."]

    def close(self) -> None:
        self.folder.cleanup()


class Ledger(BaseEnvironment):
    """Compares records with amounts as they were written."""

    def reset(self, seed: int = 0) -> str:
        self.amount, self.paid = float(seed + 20), list[str]()
        return f"Pay {self.amount} to Ada with JSON, and say when it is done."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        if not action.startswith("{"):
            return "", float(self.paid == [f"Ada {self.amount}"]), True, {}
        with contextlib.suppress(ValueError, KeyError, TypeError):
            call = json.loads(action)
            self.paid.append(f"{call['to']} {call['amount']!r}")
        return "", 0.0, False, {}

    def solve(self) -> list[Any]:
        return [json.dumps({"to": "Ada", "amount": self.amount}), "It is done."]


class PaysEachTest(Sum):
    """The reward is the count of tests that pass, and questions have different counts."""

    reward_range = None

    def reset(self, seed: int = 0) -> str:
        self.tests = 2 + seed % 4
        return super().reset(seed)

    def pay(self, action: str) -> float:
        return 3.0 * self.tests * super().pay(action)


class Distance(Sum):
    """A wrong number costs its distance, however far it is."""

    reward_range = None

    def pay(self, action: str) -> float:
        said = action.strip().rstrip(".").lstrip("-")
        return 1.0 - (abs(int(said) - int(self.right)) / 10 if said.isdecimal() else 1.0)


class SameChoice(Sum):
    """What tells two choices apart is lost."""

    def reset(self, seed: int = 0) -> str:
        self.right = "ABCD"[random.Random(seed).randrange(4)]
        return f"Which tracer is number {seed}?\n(A) benzopyrene\n(B) glucose\n(C) benzopyrene\n(D) water"


class KeepsItsWorld(BaseEnvironment):
    """What an episode has moved is not put back for the next one."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.moved = 0

    def reset(self, seed: int = 0) -> str:
        return "Go left or right."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self.moved += 1
        return f"The ball lies at {self.moved}.", 0.0, action == "stop", {}


class NobodySaysSo(BaseEnvironment):
    """The end of the episode is lost on its way to the model."""

    def reset(self, seed: int = 0) -> str:
        self.place = 0
        return "Go right three times."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self.place += action == "right"
        return f"You are at {self.place}.", 0.1 * self.place, False, {}

    def solve(self) -> list[str]:
        return ["right"] * 3
