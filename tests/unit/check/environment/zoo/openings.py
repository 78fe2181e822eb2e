"""Environments whose episodes begin differently, or not at all."""

from __future__ import annotations

import random
import time
from typing import Any


class OwnGenerator:
    """Draws its start from a generator of its own, which it does not seed."""

    def reset(self) -> str:
        return f"Guess the number {random.Random().random():.6f}."

    def step(self, action: str) -> Any:
        return "", 0.0, True, {}


class Clock:
    """Tells the time in its first observation."""

    def reset(self, seed: int = 0) -> str:
        return f"It is {time.time_ns()}. What is {seed} + 1?"

    def step(self, action: str) -> Any:
        return "", 0.0, True, {}


class FailingReset:
    """Cannot be reset for every third start."""

    def reset(self, seed: int = 0) -> str:
        if seed % 3 == 0:
            raise ConnectionError("the simulator refused the connection")
        return "Go."

    def step(self, action: str) -> Any:
        return "", 0.0, True, {}


class FewStarts:
    """Has one start, whatever the seed is: evaluation is on what is trained on."""

    def reset(self, seed: int = 0) -> str:
        return "Find the way out of the only maze there is."

    def step(self, action: str) -> Any:
        return "", 0.0, True, {}
