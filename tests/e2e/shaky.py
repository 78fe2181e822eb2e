"""Three letters in an environment that goes wrong in every way, by chance, as often as a file says."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tests.e2e.faulty import Faulty

WAYS = ("raise", "exit", "segfault", "loop", "allocate", "deaf", "bomb", "type", "nan", "huge")
"""An exception, the end of the process, a crash of it, an endless loop, 8 GB of memory, no ear for signals, processes
without end, a wrong type, a reward that is no number, and 100 MB of text."""


class Shaky(Faulty):
    """Asks for a letter three times. `config.faults` is a file with the share of steps that fail, or none.

    The chance is the operating system's own: another attempt, and another run, has its faults elsewhere.
    """

    def reset(self, seed: int = 0) -> str:
        """Ask for the first time."""
        self.letter = "abc"[seed % 3]
        return f"Say {self.letter}"

    def step(self, action: str) -> Any:
        """Pay for the share of the answer that is the letter."""
        wrong = self.maybe_fail()
        if wrong is not None:
            return wrong
        self.step_count += 1
        return "Once more", action.count(self.letter) / max(len(action), 1) / 3, self.step_count == 3, {}

    def maybe_fail(self) -> Any:
        """Go wrong in the way least seen so far, if chance has it; returns what is wrong to return."""
        told = Path(self.config.faults).read_text().split()
        if not told or random.SystemRandom().random() >= float(told[0]):
            return None
        way = min(told[1:] or WAYS, key=lambda way: hits(self.config.faults, way))
        with Path(f"{self.config.faults}.{way}").open("a") as file:
            file.write("x")
        return self.do(way)


def hits(faults: str | Path, way: str) -> int:
    """How often an environment went wrong in a way."""
    file = Path(f"{faults}.{way}")
    return len(file.read_text()) if file.exists() else 0
