"""Four turns, in each of which one of two words is to be said: a reward for each turn, for nothing but that turn."""

from __future__ import annotations

from typing import Any

from turnsmith import BaseEnvironment

CHOICES = (("yes", "no"), ("cat", "dog"), ("red", "blue"), ("up", "down"))


class Choices(BaseEnvironment):
    """Pays for the second word in the first and third turn, for the first word in the others; it is not told which."""

    reward_range = (0.0, 1.0)

    def reset(self) -> str:
        """Ask for the first word."""
        return self.question(0)

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Pay for the right word, and ask for the next."""
        turn, self.step_count = self.step_count, self.step_count + 1
        wanted = CHOICES[turn][1 - turn % 2]
        is_last = self.step_count == len(CHOICES)
        reward = float(action.lower().startswith(wanted)) / len(CHOICES)
        return "" if is_last else self.question(self.step_count), reward, is_last, {}

    @staticmethod
    def question(turn: int) -> str:
        """What a turn asks."""
        return "Say {} or {}".format(*CHOICES[turn])
