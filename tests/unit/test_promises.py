"""Every promise in docs/failures.md and docs/threat-model.md names a test that holds it, and the test exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("failures.md", "threat-model.md")


def promises(page: str) -> list[str]:
    """The rows of all tables that have a column of tests."""
    tables = re.findall(r"(?:^\|.*\n)+", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.MULTILINE)
    with_tests = [table.splitlines() for table in tables if table.splitlines()[0].rstrip(" |").endswith("test")]
    return [row for table in with_tests for row in table[2:]]


def missing(row: str) -> str:
    """What is wrong with the tests that a row names; empty if nothing is."""
    tests = re.findall(r"`(tests/[\w/]+\.py)(?::(\w+))?`", row.split("|")[-2])
    for file, name in tests:
        if not (ROOT / file).is_file():
            return f"{file} does not exist"
        if name and not re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE):
            return f"{file} has no {name}"
    return "" if tests else "no test is named"


@pytest.mark.parametrize("row", [row for page in PAGES for row in promises(page)])
def test_a_promise_names_a_test_that_exists(row: str) -> None:
    assert missing(row) == ""


def test_both_pages_have_promises() -> None:
    assert [len(promises(page)) >= 15 for page in PAGES] == [True, True]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("| it never fails | |", "no test is named"),
        ("| it never fails | `tests/unit/test_nothing.py` |", "tests/unit/test_nothing.py does not exist"),
        ("| it never fails | `tests/unit/test_promises.py:test_x` |", "tests/unit/test_promises.py has no test_x"),
    ],
)
def test_a_promise_without_a_test_is_found(row: str, problem: str) -> None:
    assert missing(row) == problem
