"""SWE-bench/SWE-bench: its grading of a patch, with the tests run in a folder here in place of a container."""

from __future__ import annotations

import difflib
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from published_subjects import Subject
from turnsmith import BaseEnvironment

_REPOSITORY, _VERSION = "marshmallow-code/marshmallow", "3.0"
"""Whose test command and log parser are taken: pytest's."""


class Repair(BaseEnvironment):
    """An issue of a small repository, answered with a patch."""

    reward_range = (0.0, 1.0)

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        _give_fixtures()

    def reset(self, task: dict[str, Any]) -> str:
        self.task = task
        shown = "\n\n".join(f"{name}:\n{text}" for name, text in task["files"].items())
        return (
            f"{task['problem_statement']}\n\n{shown}\n\n"
            "Answer with a patch in the unified format of `git diff`, and nothing else."
        )

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        is_resolved = self._grade(action, *_run(self.task, action))
        return "", float(is_resolved), True, {"success": is_resolved}

    def solve(self) -> str:
        return self.task["patch"]

    def _grade(self, patch: str, output: str, code: int) -> bool:
        """Write the log as `run_evaluation` does, and let the project read it."""
        from swebench.harness import constants
        from swebench.harness.grading import get_eval_report

        with tempfile.TemporaryDirectory() as name:
            log = Path(name, "test_output.txt")
            mark = getattr(constants, "TEST_EXIT_CODE", None)  # of what is mended
            log.write_text(output + (f"\n\n{mark}: {code}" if mark else ""), encoding="utf-8")
            prediction = {"instance_id": self.task["instance_id"], "model_name_or_path": "model", "model_patch": patch}
            report = get_eval_report(_specification(self.task), prediction, str(log), include_tests_status=False)
        return bool(report[self.task["instance_id"]]["resolved"])


def _give_fixtures() -> None:
    """The project reads files for tasks in Rust when it is imported; the sources here are without them."""
    constants = Path(__file__).parents[1] / "swebench" / "harness" / "constants"
    (constants / "fixtures").mkdir(exist_ok=True)
    for name in re.findall(r"[\w-]+\.Cargo\.lock", (constants / "rust.py").read_text(encoding="utf-8")):
        (constants / "fixtures" / name).touch()


def _specification(task: dict[str, Any]) -> Any:
    from swebench.harness.test_spec.test_spec import TestSpec

    return TestSpec(
        instance_id=task["instance_id"],
        repo=task["repo"],
        version=task["version"],
        repo_script_list=[],
        eval_script_list=[],
        env_script_list=[],
        arch="x86_64",
        FAIL_TO_PASS=task["FAIL_TO_PASS"],
        PASS_TO_PASS=task["PASS_TO_PASS"],
        language="py",
        docker_specs={},
        namespace=None,
    )


def _run(task: dict[str, Any], patch: str) -> tuple[str, int]:
    """The output of the tests after the patch, between the project's marks, and their exit status."""
    from swebench.harness import constants

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in task["files"].items():
            (folder / file).write_text(text, encoding="utf-8")
        given = patch if patch.endswith("\n") else f"{patch}\n"
        applied = subprocess.run(
            ["git", "apply", "-"], input=given, capture_output=True, text=True, cwd=folder, check=False
        )
        if applied.returncode:
            return f"{constants.APPLY_PATCH_FAIL}:\n{applied.stderr}", 1
        (folder / "test_it.py").write_text(task["test"], encoding="utf-8")
        variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "test_it.py"]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=folder, env=variables, timeout=60, check=False
        )
    marked = [constants.START_TEST_OUTPUT, done.stdout + done.stderr, constants.END_TEST_OUTPUT]
    return "\n".join(marked), done.returncode


def _rows() -> list[dict[str, Any]]:
    draw = random.Random(0)
    rows: list[dict[str, Any]] = []
    for index in range(16):
        name, issue, wrong, right, before, after = _BUGS[index % len(_BUGS)]
        numbers = sorted(draw.sample(range(2, 30), 5))
        code = f"def {name}(values):\n{before}    {wrong}\n{after}"
        file = f"{name}.py"
        tests = [
            f"from {name} import {name}\n\n",
            f"def test_known():\n    assert {name}({numbers}) == {_EXPECTED[name](numbers)!r}\n\n",
            f"def test_other():\n    assert {name}({numbers[::-1]}) == {_EXPECTED[name](numbers)!r}\n\n",
            f"def test_type():\n    assert {name}([1, 1, 1]) is not None\n",
        ]
        rows.append(
            {
                "instance_id": f"small__{name}-{index}",
                "repo": _REPOSITORY,
                "version": _VERSION,
                "problem_statement": issue,
                "files": {file: code},
                "patch": _difference(file, code, code.replace(wrong, right)),
                "test": "\n".join(tests),
                "FAIL_TO_PASS": ["test_it.py::test_known", "test_it.py::test_other"],
                "PASS_TO_PASS": ["test_it.py::test_type"],
            }
        )
    return rows


def _difference(file: str, old: str, new: str) -> str:
    lines = difflib.unified_diff(old.splitlines(True), new.splitlines(True), f"a/{file}", f"b/{file}")
    return "".join([f"diff --git a/{file} b/{file}\n", *lines])


_BUGS = (
    ("total", "total() leaves out a value.", "for value in values[1:]:", "for value in values:", "    result = 0\n",
     "        result += value\n    return result\n"),
    ("largest", "largest() returns the smallest.", "return min(values)", "return max(values)", "", ""),
    ("average", "average() is too small.", "return sum(values) / (len(values) + 1)",
     "return sum(values) / len(values)", "", ""),
    ("spread", "spread() has the wrong sign.", "return min(values) - max(values)",
     "return max(values) - min(values)", "", ""),
    ("middle", "middle() depends on the order of the values.", "ordered = list(values)", "ordered = sorted(values)",
     "", "    return ordered[len(ordered) // 2]\n"),
    ("even_count", "even_count() counts odd numbers.", "return sum(value % 2 for value in values)",
     "return sum(value % 2 == 0 for value in values)", "", ""),
    ("squares", "squares() adds up the values, not their squares.", "return sum(value for value in values)",
     "return sum(value**2 for value in values)", "", ""),
    ("above", "above() takes the first value for a limit of 10.", "limit = values[0] + 40", "limit = 10", "",
     "    return sum(value > limit for value in values)\n"),
)  # fmt: skip
"""A function, its issue, the wrong and the right line, and the lines before and after it."""
_EXPECTED: dict[str, Any] = {
    "total": sum,
    "largest": max,
    "average": lambda values: sum(values) / len(values),
    "spread": lambda values: max(values) - min(values),
    "middle": lambda values: sorted(values)[len(values) // 2],
    "even_count": lambda values: sum(value % 2 == 0 for value in values),
    "squares": lambda values: sum(value**2 for value in values),
    "above": lambda values: sum(value > 10 for value in values),
}


def _printed_lines_are_believed() -> bool:
    task = _rows()[0]
    names = [*task["FAIL_TO_PASS"], *task["PASS_TO_PASS"]]
    hook = ["import os", "def pytest_sessionstart(session):"]
    hook += [f"    os.write(1, b'PASSED {name}\\n')" for name in names] + ["    os._exit(1)"]
    patch = _difference("conftest.py", "", "\n".join(hook) + "\n")
    patch = patch.replace("--- a/conftest.py", "new file mode 100644\n--- /dev/null")
    environment = Repair()
    environment.reset(task)
    return environment.step(patch)[1] == 1


SUBJECTS = {
    "swe-bench-spoofed-output": Subject(
        ("published_subjects.swe_bench:Repair", "--data", "rows.jsonl"), _printed_lines_are_believed, _rows
    ),
}
