"""The page of time limits has every clock of the project, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "turnsmith"
PAGE = ROOT / "docs" / "time-limits.md"
_CONSTANT = re.compile(r"_?([A-Z_]*SECONDS|GRACE|PAUSE|TIMEOUT|[A-Z_]*(START|CLOSE)_LIMIT|LONG_WAIT|WARN_EVERY)")
_NAMED = re.compile(r"([a-z_]*seconds|timeout|time_limit|grace)")
_NO_LIMITS = {"seconds", "generate_seconds", "step_seconds"}
"""Fields of these names with a default of 0 are measurements."""


def clocks() -> set[str]:
    """Constants, fields and parameters with a default that are a time, as `path:NAME`."""
    found: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        module = path.relative_to(PACKAGE).as_posix()
        found |= {f"{module}:{name}" for name in _names(ast.parse(path.read_text()))}
    return found


def _names(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        for name, value in _assigned(node):
            if _CONSTANT.fullmatch(name) and _is_time(value):
                yield name
    for owner in ast.walk(tree):
        if isinstance(owner, ast.ClassDef):
            fields = [pair for node in owner.body for pair in _assigned(node)]
            fields += [pair for node in owner.body if isinstance(node, ast.FunctionDef) for pair in _defaults(node)]
        elif isinstance(owner, ast.Module):
            fields = [pair for node in owner.body if isinstance(node, ast.FunctionDef) for pair in _defaults(node)]
        else:
            continue
        for name, value in fields:
            is_measured = name in _NO_LIMITS and isinstance(value, ast.Constant) and not value.value
            if _NAMED.fullmatch(name) and _is_time(value) and not is_measured:
                yield f"{owner.name}.{name}" if isinstance(owner, ast.ClassDef) else name


def _assigned(node: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        yield node.targets[0].id, node.value
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
        yield node.target.id, node.value


def _defaults(function: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    yield from ((one.arg, value) for one, value in zip(positional[::-1], arguments.defaults[::-1], strict=False))
    yield from (
        (one.arg, value) for one, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if value
    )


def _is_time(value: ast.expr) -> bool:
    if isinstance(value, ast.Tuple):
        return all(map(_is_time, value.elts))
    return (
        isinstance(value, ast.Constant) and isinstance(value.value, int | float) and not isinstance(value.value, bool)
    )


def listed() -> set[str]:
    """What the first column of the page's tables names."""
    rows = re.findall(r"^\|([^|]+)\|", PAGE.read_text(), re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([\w/]+\.py:[\w.]+)`", row)}


def test_the_page_has_every_clock_and_no_other() -> None:
    assert clocks() - listed() == set(), "say in docs/time-limits.md what these count"
    assert listed() - clocks() == set(), "these are gone"


def test_a_clock_that_the_page_does_not_have_would_be_found() -> None:
    new = ast.parse("_SAVE_SECONDS = 5.0\nclass A:\n    time_limit: float = 3.0\n\n    def f(self, timeout=2): ...\n")
    assert sorted(_names(new)) == ["A.time_limit", "A.timeout", "_SAVE_SECONDS"]
