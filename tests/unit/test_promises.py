"""docs/reference/promises.md: each promise names its test, what it was held under, and how often it runs."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROMISES = ROOT / "docs" / "reference" / "promises.md"
THREATS = ROOT / "docs" / "threat-model.md"


def rows(page: Path, first: str) -> list[list[str]]:
    """The cells of all rows of the tables whose first column has this title."""
    tables = re.findall(r"(?:^\|.*\n)+", page.read_text(encoding="utf-8"), re.MULTILINE)
    found = [table.splitlines() for table in tables if table.startswith(f"| {first} |")]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for table in found for row in table[2:]]


def sources(file: str) -> str:
    """The text of a test's file and of the modules of tests that it imports."""
    text = (ROOT / file).read_text(encoding="utf-8")
    names = set(re.findall(r"^from (tests\.[\w.]+) import", text, re.MULTILINE)) | {
        f"{package}.{name}"
        for package, imported in re.findall(r"^from (tests[\w.]*) import (.+)", text, re.MULTILINE)
        for name in re.findall(r"\w+", imported)
    }
    beside = [ROOT / (name.replace(".", "/") + ".py") for name in names]
    return "\n".join([text, *(path.read_text(encoding="utf-8") for path in beside if path.is_file())])


def marks(file: str, name: str) -> str:
    """What the marks of a whole file and those of one of its functions say."""
    body = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
    found: list[ast.AST] = [
        node for node in body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            found += node.decorator_list
    # Marks under a condition are those of the long form of a test that also has a short one.
    whole = [node for node in found if not any(isinstance(part, ast.IfExp) for part in ast.walk(node))]
    return " ".join(map(ast.unparse, whole))


def problem(row: list[str]) -> str:
    """What is wrong with a row; empty if nothing is."""
    if len(row) != 4:
        return "a row has a promise, its tests, what they were held under, and when they run"
    _, named, held, runs = row
    tests = re.findall(r"`(tests/[\w/]+\.py)(?::(\w+))?`", named)
    if not tests or not held:
        return "no test is named" if not tests else "what it was held under is not said"
    for file, name in tests:
        if not (ROOT / file).is_file():
            return f"{file} does not exist"
        if name and not re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE):
            return f"{file} has no {name}"
    nightly = {"nightly" in marks(file, name) or file.startswith("tests/fuzz") for file, name in tests}
    if {"nightly" if one else "every change" for one in nightly} != set(runs.split(" and ")):
        return f"not every test runs as {runs} says"
    text = "\n".join(sources(file) for file, _ in tests)
    for setting in re.findall(r"`([^`]+=[^`]+)`", held):
        if not re.search(re.escape(setting).replace("=", "(?: = |=)"), text):
            return f"no test sets {setting}"
    return ""


@pytest.mark.parametrize("row", rows(PROMISES, "promise"), ids=lambda row: row[0][:60])
def test_a_promise_names_its_test_and_what_it_was_held_under(row: list[str]) -> None:
    assert problem(row) == ""


def test_every_attack_of_the_threat_model_is_among_the_promises() -> None:
    promised = [row[0] for row in rows(PROMISES, "promise")]
    attacks = [row[0] for row in rows(THREATS, "attack")]
    assert len(attacks) > 30
    assert [attack for attack in attacks if attack not in promised] == []


HERE = "tests/unit/test_promises.py"


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ("it never fails | | tiny | nightly", "no test is named"),
        (f"it never fails | `{HERE}` | | nightly", "what it was held under is not said"),
        ("it never fails | `tests/unit/test_nothing.py` | tiny | nightly", "tests/unit/test_nothing.py does not exist"),
        (f"it never fails | `{HERE}:test_x` | tiny | nightly", f"{HERE} has no test_x"),
        (f"it never fails | `{HERE}` | tiny | nightly", "not every test runs as nightly says"),
        (f"it never fails | `{HERE}` | `failures.none={'x'}` | every change", f"no test sets failures.none={'x'}"),
    ],
)
def test_a_promise_that_is_not_held_is_found(row: str, wrong: str) -> None:
    assert problem([cell.strip() for cell in row.split("|")]) == wrong
