"""Environments whose `step` breaks, or plays dice."""

from __future__ import annotations

import random
import uuid
from typing import Any


class FirstWord:
    """Takes the first word of an answer that may have none."""

    def reset(self, seed: int = 0) -> str:
        return "Say left or right."

    def step(self, action: str) -> Any:
        return "", float(action.split()[0] == "left"), True, {}


class Number:
    """Takes every answer for a number."""

    def reset(self, seed: int = 0) -> str:
        return "Name a number."

    def step(self, action: str) -> Any:
        return "", float(int(action) > 3), True, {}


class NotANumber:
    """Its reward is a mean over what it found in the answer, which may be nothing."""

    def reset(self, seed: int = 0) -> str:
        return "Name three colours."

    def step(self, action: str) -> Any:
        found = [word in ("red", "green", "blue") for word in action.split()]
        return "", sum(found) / len(found) if found else float("nan"), True, {}


class Dice:
    """Throws dice that the seed does not decide."""

    def reset(self, seed: int = 0) -> str:
        return "Roll."

    def step(self, action: str) -> Any:
        rolled = random.SystemRandom().randint(1, 10**6)
        return f"You rolled {rolled}.", rolled / 10**6, False, {}


class NewIds:
    """Every answer has an id that is new each time."""

    def reset(self, seed: int = 0) -> str:
        return "Open a ticket."

    def step(self, action: str) -> Any:
        return f"Ticket {uuid.uuid4()} is open.", 0.0, False, {}
