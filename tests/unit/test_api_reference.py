"""Every public name has an entry in the reference, with an example that the tests run."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

import turnsmith
from turnsmith import algo

ROOT = Path(__file__).parents[2]
TYPES = {"Aggregation", "KLEstimator", "TurnScale"}
"""Names of a choice between words: they have no docstring to hold an example."""


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    from docs.hooks import api_reference

    return api_reference


def entries() -> dict[str, str]:
    found: dict[str, str] = {}
    for page in (ROOT / "docs" / "reference" / "api").glob("*.md"):
        parts = re.split(r"^## `(\w+)`.*$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        found |= dict(zip(parts[1::2], parts[2::2], strict=True))
    return found


def test_the_pages_are_up_to_date(hook: ModuleType) -> None:
    written = {page.name: page.read_text(encoding="utf-8") for page in hook.FOLDER.glob("*.md")}
    assert written == hook.api_reference(), "run: python -m docs.hooks.api_reference"


@pytest.mark.parametrize("name", sorted({*turnsmith.__all__, *algo.__all__} - {"algo"}))
def test_a_public_name_has_an_entry_with_an_example(name: str) -> None:
    entry = entries().get(name, "")
    assert len(entry.strip()) > 20, f"{name} has no entry: run python -m docs.hooks.api_reference"
    assert name in TYPES or ">>> " in entry, f"add an example to the docstring of {name}"
