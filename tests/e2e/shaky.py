"""Three letters in an environment that crashes, stalls and loses its process, by chance, as often as a file says."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

from turnwise import BaseEnvironment

WAYS = ("raise", "stall", "exit")


class Shaky(BaseEnvironment):
    """Asks for a letter three times. `config.faults` is a file with the share of steps that fail, or none.

    The chance is the operating system's own: another attempt, and another run, has its faults elsewhere.
    """

    def reset(self, seed: int = 0) -> str:
        """Ask for the first time."""
        self.letter = "abc"[seed % 3]
        self.maybe_fail()
        return f"Say {self.letter}"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Pay for the share of the answer that is the letter."""
        self.maybe_fail()
        self.step_count += 1
        return "Once more", action.count(self.letter) / max(len(action), 1) / 3, self.step_count == 3, {}

    def maybe_fail(self) -> None:
        """Crash, stall or die, if chance has it."""
        told = Path(self.config.faults).read_text().split()
        chance = random.SystemRandom()
        if not told or chance.random() >= float(told[0]):
            return
        way = chance.choice(told[1:] or WAYS)
        with Path(f"{self.config.faults}.{way}").open("a") as file:
            file.write("x")
        if way == "raise":
            raise ConnectionError("the letter service did not answer")
        if way == "stall":
            time.sleep(600)
        os.kill(os.getpid(), signal.SIGKILL)
