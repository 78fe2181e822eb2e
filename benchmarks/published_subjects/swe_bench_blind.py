"""SWE-bench/SWE-bench: its grading and its script for a repository, with small repositories of ours and no images."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from published_subjects import Subject
from published_subjects.container_blind import command
from turnsmith import BaseEnvironment, tool


@dataclass(frozen=True)
class Instance:
    """An issue of a repository with one module, and tests of which the first fails before the repair."""

    id: str
    issue: str
    before: str
    after: str
    tests: dict[str, str]

    @property
    def patch(self) -> str:
        lines = (text.splitlines(keepends=True) for text in (self.before, self.after))
        return "".join(difflib.unified_diff(*lines, fromfile="a/library.py", tofile="b/library.py"))

    @property
    def test_file(self) -> str:
        body = "".join(f"    def {name}(self):\n        {line}\n\n" for name, line in self.tests.items())
        return f"import unittest\n\nimport library\n\n\nclass Tests(unittest.TestCase):\n{body}"


def _function(head: str, *lines: str) -> str:
    return "".join(f"{line}\n" for line in (f"def {head}:", *(f"    {line}" for line in lines)))


INSTANCES = (
    Instance(
        "shop__prices-101",
        "`total` ignores the number of pieces: total([(2, 3)]) should be 6 and is 3.",
        _function("total(items)", "result = 0", "for count, price in items:", "    result += price", "return result"),
        _function(
            "total(items)", "result = 0", "for count, price in items:", "    result += count * price", "return result"
        ),
        {
            "test_counts": "self.assertEqual(library.total([(2, 3), (1, 4)]), 10)",
            "test_nothing": "self.assertEqual(library.total([]), 0)",
        },
    ),
    Instance(
        "text__slugs-7",
        "Slugs keep spaces at the ends: slug(' A b ') should be 'a-b'.",
        _function("slug(title)", "words = title.lower().split(' ')", "return '-'.join(words)"),
        _function("slug(title)", "words = title.lower().split()", "return '-'.join(words)"),
        {
            "test_ends": "self.assertEqual(library.slug(' A b '), 'a-b')",
            "test_plain": "self.assertEqual(library.slug('One Two'), 'one-two')",
        },
    ),
    Instance(
        "dates__leap-33",
        "is_leap(1900) returns True, but centuries are leap years only if 400 divides them.",
        _function("is_leap(year)", "return year % 4 == 0"),
        _function("is_leap(year)", "return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)"),
        {
            "test_century": "self.assertFalse(library.is_leap(1900))",
            "test_usual": "self.assertTrue(library.is_leap(2024))",
            "test_400": "self.assertTrue(library.is_leap(2000))",
        },
    ),
    Instance(
        "lists__window-12",
        "`windows` leaves out the last window: windows([1, 2, 3], 2) should end with [2, 3].",
        _function("windows(items, size)", "return [items[at:at + size] for at in range(len(items) - size)]"),
        _function("windows(items, size)", "return [items[at:at + size] for at in range(len(items) - size + 1)]"),
        {
            "test_last": "self.assertEqual(library.windows([1, 2, 3], 2), [[1, 2], [2, 3]])",
            "test_too_large": "self.assertEqual(library.windows([1], 5), [])",
        },
    ),
    Instance(
        "config__merge-58",
        "`merge` changes the dictionary of defaults that it is given.",
        _function("merge(defaults, given)", "defaults.update(given)", "return defaults"),
        _function("merge(defaults, given)", "merged = dict(defaults)", "merged.update(given)", "return merged"),
        {
            "test_defaults_stay": "d = {'a': 1}; library.merge(d, {'a': 2}); self.assertEqual(d, {'a': 1})",
            "test_merged": "self.assertEqual(library.merge({'a': 1}, {'b': 2}), {'a': 1, 'b': 2})",
        },
    ),
    Instance(
        "stats__median-4",
        "The median of an even count of numbers should be the mean of the two in the middle.",
        _function("median(numbers)", "ordered = sorted(numbers)", "return ordered[len(ordered) // 2]"),
        _function(
            "median(numbers)",
            "ordered = sorted(numbers)",
            "middle = len(ordered) // 2",
            "if len(ordered) % 2 == 0:",
            "    return (ordered[middle - 1] + ordered[middle]) / 2",
            "return ordered[middle]",
        ),
        {
            "test_even": "self.assertEqual(library.median([1, 2, 3, 4]), 2.5)",
            "test_odd": "self.assertEqual(library.median([3, 1, 2]), 2)",
        },
    ),
)


def test_log(instance: Instance, patch: str) -> str:
    """What the evaluation writes: the patch is applied, then come the tests, whatever stood in their place."""
    from swebench.harness.constants import APPLY_PATCH_FAIL, END_TEST_OUTPUT, START_TEST_OUTPUT

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "library.py").write_text(instance.before, encoding="utf-8")
        alone = os.environ | {"GIT_CEILING_DIRECTORIES": folder}
        apply = ["git", "apply", "--verbose", "-"]
        done = subprocess.run(apply, input=patch, text=True, capture_output=True, cwd=folder, env=alone, check=False)
        if done.returncode:
            return f"{APPLY_PATCH_FAIL}\n{done.stderr}"
        Path(folder, "tests.py").write_text(instance.test_file, encoding="utf-8")
        run = [sys.executable, "-m", "unittest", "-v", "tests"]
        tests = subprocess.run(run, text=True, capture_output=True, cwd=folder, timeout=60, check=False)
        return f"{START_TEST_OUTPUT}\n{tests.stdout}{tests.stderr}\n{END_TEST_OUTPUT}\n"


def resolved(instance: Instance, patch: str) -> bool:
    """The verdict of the project's report on that log."""
    from swebench.harness.grading import get_eval_report

    names = [f"{name} (tests.Tests.{name})" for name in instance.tests]
    about = {"instance_id": instance.id, "log_parser": "parse_log_django", "eval_type": "pass_and_fail"}
    specification: Any = SimpleNamespace(**about, FAIL_TO_PASS=names[:1], PASS_TO_PASS=names[1:])
    prediction = {"instance_id": instance.id, "model_name_or_path": "policy", "model_patch": patch}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "test_output.txt")
        log.write_text(test_log(instance, patch), encoding="utf-8")
        report = get_eval_report(specification, prediction, str(log), include_tests_status=True)
    return bool(report[instance.id]["resolved"])


class Repair(BaseEnvironment):
    """One issue, answered with a patch; 1 if it is resolved."""

    reward_range = (0.0, 1.0)

    def reset(self, seed: int = 0) -> str:
        self.instance = INSTANCES[seed % len(INSTANCES)]
        return f"{self.instance.issue}\n\nlibrary.py:\n{self.instance.before}"

    def get_prompt_prefix(self) -> str:
        return "Resolve the issue. Answer with nothing but a patch that `git apply` takes."

    def step(self, action: str) -> Any:
        is_resolved = resolved(self.instance, action)
        return "", float(is_resolved), True, {"success": is_resolved}

    def solve(self) -> str:
        return self.instance.patch


def _origin(instance: Instance, folder: Path) -> str:
    """The project's repository, with a release after each commit; returns the one that an agent begins from."""
    author = {f"GIT_{who}_{what}": "somebody" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    bases = []
    subprocess.run(["git", "init", "-q", "-b", "main", folder], check=True)
    for day, text, said in ((1, instance.before, "Library"), (2, instance.after, f"Fix {instance.id}")):
        when = {f"GIT_{who}_DATE": f"2024-01-0{day}T12:00:00+00:00" for who in ("AUTHOR", "COMMITTER")}
        Path(folder, "library.py").write_text(text, encoding="utf-8")
        for arguments in (["add", "."], ["commit", "-qm", said], ["tag", f"v1.{day}"]):
            subprocess.run(["git", "-C", folder, *arguments], env=os.environ | author | when, check=True)
        head = ["git", "-C", folder, "rev-parse", "HEAD"]
        bases.append(subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip())
    return bases[0]


class Issue(BaseEnvironment):
    """A shell in a repository that the project's script has set up; what the model says ends it, and tests decide."""

    reward_range = (0.0, 1.0)

    def reset(self, seed: int = 0) -> str:
        from swebench.harness.test_spec.python import make_repo_script_list_py

        self.instance = INSTANCES[seed % len(INSTANCES)]
        self.folder = tempfile.TemporaryDirectory()
        outside = {name: Path(self.folder.name, name) for name in ("home", "origin", "testbed", "opt")}
        for folder in outside.values():
            folder.mkdir()
        activate = Path(outside["opt"], "miniconda3", "bin", "activate")
        activate.parent.mkdir(parents=True)
        activate.write_text("conda() { CONDA_DEFAULT_ENV=testbed; }\n", encoding="utf-8")
        base = _origin(self.instance, outside["origin"])
        settings = '[url "/origin"]\n\tinsteadOf = https://github.com/somebody/library\n[safe]\n\tdirectory = *\n'
        Path(outside["home"], ".gitconfig").write_text(settings, encoding="utf-8")
        binds = [(outside[name], f"/{name}") for name in ("testbed", "opt")]
        build = command(outside["home"], *binds, (outside["origin"], "/origin"), folder="/testbed")
        self.shell = command(outside["home"], *binds, folder="/testbed")
        lines = make_repo_script_list_py({}, "somebody/library", "/testbed", base, "testbed")
        script = "\n".join(["set -euxo pipefail", *lines])
        subprocess.run([*build, "/bin/bash", "-c", script], capture_output=True, text=True, check=True)
        return f"{self.instance.issue} The repository is in /testbed. Say so when the issue is resolved."

    @tool
    def bash(self, script: str) -> str:
        """Run a script of bash in the repository.

        Args:
            script: The lines to run.
        """
        run = [*self.shell, "/bin/bash", "-c", script]
        done = subprocess.run(run, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False)
        return f"{done.stdout}{done.stderr}"[:10_000]

    def step(self, action: str) -> Any:
        tests = Path(self.folder.name, "testbed", "tests.py")
        tests.write_text(self.instance.test_file, encoding="utf-8")
        run = [*self.shell, "/usr/bin/python3", "-m", "unittest", "tests"]
        is_resolved = subprocess.run(run, capture_output=True, timeout=20, check=False).returncode == 0
        return "", float(is_resolved), True, {"success": is_resolved}

    def solve(self) -> list[Any]:
        repair = f"git apply - <<'PATCH'\n{self.instance.patch}PATCH"
        return [{"name": "bash", "arguments": {"script": repair}}, "The issue is resolved."]

    def close(self) -> None:
        self.folder.cleanup()


def _later_commits_are_there() -> bool:
    issue = Issue()
    issue.reset(seed=0)
    said = issue.bash("git log --all --oneline")
    issue.close()
    return "Fix shop__prices" in said


def _skipped_tests_resolve() -> bool:
    from swebench.harness.grading import get_eval_tests_report, get_resolution_status

    wanted = {"FAIL_TO_PASS": ["test_a", "test_b"], "PASS_TO_PASS": ["test_c"]}
    report = get_eval_tests_report(dict.fromkeys(("test_a", "test_b", "test_c"), "SKIPPED"), wanted)
    return get_resolution_status(report) == "RESOLVED_FULL"


_HERE = "published_subjects.swe_bench_blind"
SUBJECTS = {
    "swe-bench-git-history": Subject((f"{_HERE}:Issue",), _later_commits_are_there),
    "swe-bench-skipped-tests": Subject((f"{_HERE}:Repair",), _skipped_tests_resolve),
}
