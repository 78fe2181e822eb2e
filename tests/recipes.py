"""The folders below recipes/, as their READMEs say they are used."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAMES = sorted(file.parent.name for file in (ROOT / "recipes").glob("*/README.md"))


def commands(name: str) -> list[list[str]]:
    """What a README has a user type that begins with `turnsmith`, without that word."""
    text = (ROOT / "recipes" / name / "README.md").read_text(encoding="utf-8")
    lines = [line for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    return [shlex.split(line)[2:] for line in lines if line.startswith("$ turnsmith ")]


def training(name: str) -> list[str]:
    """The command that trains."""
    (found,) = [words for words in commands(name) if words[0] == "train" and "--dry-run" not in words]
    return found
