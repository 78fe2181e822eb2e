"""Environments whose episodes share what should be their own."""

from __future__ import annotations

import random
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


class GlobalSeed:
    """Seeds the global generator in `reset`, and draws from it in `step`."""

    def reset(self, seed: int = 0) -> str:
        random.seed(seed)
        return "Draw a card."

    def step(self, action: str) -> Any:
        return f"You drew {random.randint(1, 10**9)}.", 0.0, False, {}


class FixedFile:
    """Keeps its state in a file of one name."""

    file = Path(tempfile.gettempdir()) / "turnsmith-zoo-state.txt"

    def reset(self, seed: int = 0) -> str:
        self.file.write_text(str(seed))
        return f"The room has the number {seed}."

    def step(self, action: str) -> Any:
        return f"You are in room {self.file.read_text()}.", 0.0, True, {}
