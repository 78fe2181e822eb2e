"""Three letters, some of them from an environment that takes longer than a step of training."""

from __future__ import annotations

import time
from typing import Any

from turnsmith import BaseEnvironment


class SlowLetters(BaseEnvironment):
    """Asks for "a" three times; for every fourth start it takes its time, once."""

    def reset(self, seed: int = 0) -> str:
        """Ask for the first time."""
        self.is_slow = seed % 4 == 0
        return "Say a"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Pay for the share of the answer that is the letter."""
        if self.is_slow and self.step_count == 0:
            time.sleep(float(self.config.get("seconds", 4.0)))
        self.step_count += 1
        return "Once more", action.count("a") / max(len(action), 1) / 3, self.step_count == 3, {}
