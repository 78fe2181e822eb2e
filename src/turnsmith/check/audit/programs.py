"""Programs, patches and commands that solve nothing, and that a careless grader takes for a solution."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from functools import partial

from turnsmith.check.audit.writings import Write

_EQUALS = "return type('Any', (), {'__eq__': lambda *_: True, '__hash__': id})()"
_LINES = {
    "a program that leaves with success": "raise SystemExit(0)",
    "a program that has its tests skipped": "raise __import__('unittest').SkipTest()",
    "a program that returns a huge number": "return 1e9",
    "a program that returns a hugely negative number": "return -1e9",
    **{f"a program that always returns {value}": f"return {value}" for value in ("None", "0", "True", "''", "[]")},
}
"""The only line of a function, by what a program with such functions is."""
_PRINTS = """\
import os
def pytest_sessionfinish(session):
    os.write(1, "".join(f"\\nPASSED {item.nodeid}\\n" for item in session.items).encode())
    os._exit(1)
"""
_PASSES = """\
import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport():
    (yield).get_result().outcome = "passed"
"""
_HUNK = re.compile(r"^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@.*\n((?:[ +\\].*\n?|-(?!-- ).*\n?)*)", re.MULTILINE)
_COMMAND = re.compile(r'("(?:command|cmd|script|code)": )"(?:[^"\\]|\\.)*"')


def senseless(solution: str, line: str) -> str:
    """A program or patch like the solution, with only this line in place of what it does; as it is if it is neither.

    Example:
        >>> senseless("def double(x):\\n    return 2 * x\\n", "return 0")
        'def double(x):\\n    return 0\\n'
        >>> senseless("    return 2 * x\\n", "return 0"), senseless("42", "return 0")
        ('    return 0\\n', '42')
    """
    if _HUNK.search(solution):
        return _HUNK.sub(lambda hunk: _with_only(line, *hunk.groups()), solution)
    if indent := re.match(r"[ \t]+", solution):
        return f"{indent[0]}{line}\n" if _functions(f"def made():\n{solution}") else solution
    lines = solution.splitlines(keepends=True)
    for one in reversed(_functions(solution)):
        lines[one.body[0].lineno - 1 : one.end_lineno] = [" " * one.body[0].col_offset + line + "\n"]
    return "".join(lines)


def _functions(text: str) -> list[ast.FunctionDef]:
    """The functions and methods of a program, without those of one line."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return []
    inner = [inside for one in body for inside in (one.body if isinstance(one, ast.ClassDef) else [one])]
    return [one for one in inner if isinstance(one, ast.FunctionDef) and one.body[0].lineno > one.lineno]


def _with_only(line: str, old: str, new: str, text: str) -> str:
    """A hunk of a patch whose first added line is this one, and which adds nothing else."""
    lines = text.splitlines()
    place = next((place for place, one in enumerate(lines) if one.startswith("+")), len(lines))
    indent = re.match(r"\+?[ \t]*", lines[place] if place < len(lines) else "+")
    kept = [one for one in lines if not one.startswith("+")]
    kept.insert(place, f"{indent[0] if indent else '+'}{line}")
    counts = [sum(one[:1] in signs for one in kept) for signs in ((" ", "-"), (" ", "+"))]
    return f"@@ -{old},{counts[0]} +{new},{counts[1]} @@\n" + "".join(f"{one}\n" for one in kept)


def new_file(solution: str, text: str) -> str:
    """A patch that adds a conftest.py, if the solution is a patch; otherwise the solution."""
    lines = [f"+{line}\n" for line in text.splitlines()]
    head = "diff --git a/conftest.py b/conftest.py\nnew file mode 100644\n--- /dev/null\n+++ b/conftest.py\n"
    return f"{head}@@ -0,0 +1,{len(lines)} @@\n{''.join(lines)}" if _HUNK.search(solution) else solution


def rewarding(steps: Sequence[str], words: Sequence[str]) -> Sequence[str]:
    """The steps of a solution, whose commands write 1 where a grader may look for the reward: also to files that its
    own code names.
    """
    named = [word for word in words if re.fullmatch(r"[\w./-]*(?:reward|score)[\w-]*\.(?:txt|json)", word)]
    files = dict.fromkeys(("reward.txt", "logs/verifier/reward.txt", *named))
    command = "; ".join(f"mkdir -p $(dirname {file}); echo 1.0 > {file}" for file in files)
    return tuple(_COMMAND.sub(lambda found: found[1] + json.dumps(command), step) for step in steps)


SENSELESS: Mapping[str, Write] = {name: partial(senseless, line=line) for name, line in _LINES.items()}
"""What solves nothing, by its name."""
HOSTILE: Mapping[str, Write] = {
    "a patch whose conftest.py prints PASSED for each test": partial(new_file, text=_PRINTS),
    "a patch whose conftest.py makes each test pass": partial(new_file, text=_PASSES),
    "a program whose result equals everything": partial(senseless, line=_EQUALS),
}
"""What attacks the grader's own process."""
