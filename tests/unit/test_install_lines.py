"""Every `pip install` that users are told to type names this distribution, or a package known here, and real extras."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Packages that a line may name besides ourselves: installed first, or for one purpose only. `{name}` is a tracker's.
OTHERS = {"torch", "virtualenv", "playwright", "atheris", "msgspec", "cloudpickle", "mlflow", "{name}"}
_INSTALL = re.compile(r"pip install ([^`\n)]+)")
_REQUIREMENT = re.compile(r"'?([A-Za-z{.][\w.}-]*)?(?:\[([\w,-]+)\])?(?:==[\w.+]+)?'?")


def install_lines() -> Iterator[tuple[str, str]]:
    """Each `pip install ...` in the package's messages, the docs and the project's scripts, with its place."""
    folders = ("src", "docs", "examples", "tests/fuzz")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*") if file.suffix in (".py", ".md")]
    for file in [*files, *ROOT.glob("*.md"), ROOT / "justfile", ROOT / ".ci" / "run"]:
        text = re.sub(r"\"\s*\n\s*f?\"", "", file.read_text())  # a message may be written as two strings
        for match in _INSTALL.finditer(text):
            yield f"{file.relative_to(ROOT)}: {match[0]}", match[1]


def requirements(words: str) -> Iterator[tuple[str, list[str]]]:
    """Name and extras of each package that an install line names; what follows them is the rest of a sentence."""
    skip = False
    for word in words.partition(" && ")[0].split():
        if skip or word.startswith("-"):
            skip = not skip and word in ("-c", "--target")
            continue
        found = _REQUIREMENT.fullmatch(word.rstrip('",.;:'))
        assert found, f"{word!r} is not a requirement"
        yield found[1] or "", found[2].split(",") if found[2] else []
        if word[-1] in '",.;:':
            return


@pytest.mark.parametrize(("place", "words"), list(install_lines()))
def test_every_install_line_can_be_typed(place: str, words: str) -> None:
    for name, extras in requirements(words.partition(" on a ")[0].partition(" (or ")[0]):
        assert name in {PROJECT["name"], "", ".", *OTHERS}, f"{place} names another project"
        for extra in extras:
            assert extra in PROJECT["optional-dependencies"], f"{place}: there is no extra {extra!r}"


def test_every_extra_of_ours_that_is_spoken_of_exists() -> None:
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    named = {extra for file in files for extra in re.findall(rf"{PROJECT['name']}\[([\w,-]+)\]", file.read_text())}
    assert {"cpu", "openai", "mcp"} <= named
    assert {part for extra in named for part in extra.split(",")} <= PROJECT["optional-dependencies"].keys()
