"""Three answers of letters, some of them to an environment that takes longer than a step of training."""

from __future__ import annotations

import time
from string import ascii_lowercase
from typing import Any

from turnsmith import BaseEnvironment


class SlowLetters(BaseEnvironment):
    """Asks for small letters three times; for every fourth start it takes its time, once.

    A quarter of what an untrained model says are small letters, so that every group has something to learn from,
    whatever the order in which its episodes arrive.
    """

    def reset(self, seed: int = 0) -> str:
        """Ask for the first time."""
        self.is_slow = seed % 4 == 0
        return "Say letters"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Pay for the share of the answer that is small letters."""
        if self.is_slow and self.step_count == 0:
            time.sleep(float(self.config.get("seconds", 4.0)))
        self.step_count += 1
        share = sum(letter in ascii_lowercase for letter in action) / max(len(action), 1)
        return "Once more", share / 3, self.step_count == 3, {}
