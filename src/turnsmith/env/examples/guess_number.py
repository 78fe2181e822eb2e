"""Guess a number; after each guess the environment answers higher or lower."""

from __future__ import annotations

import random
import re

from turnsmith.env.base import BaseEnvironment


class GuessNumber(BaseEnvironment):
    """Guess a number from 1 to `highest` (default 16) in at most `max_steps` guesses. Reward: 1 for the right one.

    Example:
        >>> game = GuessNumber({"highest": 4})
        >>> game.reset(seed=3)
        'Guess my number, from 1 to 4.'
        >>> game.step("Is it 1?")
        ('Higher than 1.', 0.0, False, {'guess': 1})
        >>> game.step("2")
        ('Yes, it is 2.', 1.0, True, {'guess': 2, 'success': True})
    """

    reward_range = (0.0, 1.0)
    target: int = 0

    @property
    def highest(self) -> int:
        """The largest possible number."""
        return int(self.config.get("highest", 16))

    def reset(self, seed: int = 0) -> str:
        """Draw the number from the seed."""
        self.target = random.Random(seed).randint(1, self.highest)
        return f"Guess my number, from 1 to {self.highest}."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, int | bool]]:
        """Answer a guess: the first number in the model's text."""
        # At most 9 digits: Python refuses to parse integers of thousands of digits, and models do write them.
        number = re.search(r"-?\d{1,9}", action)
        if number is None:
            return f"Answer with a number from 1 to {self.highest}.", 0.0, False, {}
        guess = int(number.group())
        if guess == self.target:
            return f"Yes, it is {guess}.", 1.0, True, {"guess": guess, "success": True}
        return f"{'Higher' if guess < self.target else 'Lower'} than {guess}.", 0.0, False, {"guess": guess}

    def solve(self) -> str:
        """The number."""
        return str(self.target)

    def get_prompt_prefix(self) -> str:
        """Tell the model how to answer."""
        return "You guess a number. Answer with one number and nothing else."
