"""Environments whose episodes share what should be their own."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any


class ClassState:
    """Keeps the word to guess in its class."""

    word = ""

    def reset(self, seed: int = 0) -> str:
        ClassState.word = f"word{seed}"
        return f"Repeat: word{seed}"

    def step(self, action: str) -> Any:
        return f"It was {ClassState.word}.", float(action == ClassState.word), True, {}


class Variable:
    """Keeps its state in an environment variable."""

    def reset(self, seed: int = 0) -> str:
        os.environ["TURNSMITH_ZOO_DOOR"] = str(seed)
        return "Look at the door."

    def step(self, action: str) -> Any:
        return f"It has the number {os.environ['TURNSMITH_ZOO_DOOR']}.", 0.0, False, {}


class FixedFile:
    """Keeps its state in a file of one name."""

    file = Path(tempfile.gettempdir()) / "turnsmith-zoo-state.txt"

    def reset(self, seed: int = 0) -> str:
        self.file.write_text(str(seed))
        return f"The room has the number {seed}."

    def step(self, action: str) -> Any:
        return f"You are in room {self.file.read_text()}.", 0.0, True, {}
