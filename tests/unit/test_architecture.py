"""docs/architecture.md is true: every `file.py:name` on it exists, and it has what it promises."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
REFERENCES = sorted(set(re.findall(r"`([\w/]+\.py):([\w.]+)`", PAGE)))


def section(title: str) -> str:
    match = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert match, f"no section {title}"
    return match[1]


def rows(title: str) -> list[str]:
    return [line for line in section(title).splitlines() if line.startswith("| ")][2:]


def definition(body: list[ast.stmt], name: str) -> ast.stmt | None:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name:
            return node
    return None


@pytest.mark.parametrize(("file", "name"), REFERENCES)
def test_each_reference_is_defined_in_that_file(file: str, name: str) -> None:
    path = ROOT / file if file.startswith("tests/") else ROOT / "src" / "turnsmith" / file
    node: ast.AST = ast.parse(path.read_text(encoding="utf-8"))
    for part in name.split("."):
        inner = definition(getattr(node, "body", []), part)
        assert inner is not None, f"{file} has no {name}"
        node = inner


def test_a_step_has_15_arrows_and_each_names_a_function() -> None:
    steps = re.split(r"^\d+\. ", section("One step in 15 arrows"), flags=re.MULTILINE)[1:]
    assert len(steps) == 15
    assert all("→" in step and ".py:" in step for step in steps)


def test_there_are_five_invariants_and_twenty_look_ups() -> None:
    assert len(rows("Five invariants")) == 5
    assert all("`tests/" in row for row in rows("Five invariants"))
    assert len(rows("Where is ...?")) == 20
    assert all(".py:" in row for row in rows("Where is ...?"))


def test_every_package_is_on_the_page() -> None:
    packages = [path.parent.name for path in (ROOT / "src" / "turnsmith").glob("*/__init__.py")]
    assert [name for name in packages if f"| `{name}` |" not in PAGE] == []
