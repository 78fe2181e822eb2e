"""The folders below recipes/, as their READMEs say they are used."""

from __future__ import annotations

import shlex

from tests import console
from tests.console import ROOT

NAMES = sorted(file.parent.name for file in (ROOT / "recipes").glob("*/README.md"))


def commands(name: str) -> list[list[str]]:
    """What a README has a user type that begins with `turnsmith`, without that word."""
    page = f"recipes/{name}/README.md"
    return [
        shlex.split(line)[1:] for place, line in console.commands() if place == page and line.startswith("turnsmith ")
    ]


def training(name: str) -> list[str]:
    """The command that trains."""
    (found,) = [words for words in commands(name) if words[0] == "train" and "--dry-run" not in words]
    return found
