"""Guess a number; the environment answers higher or lower."""

from __future__ import annotations

import random
import re

from turnsmith.env.base import BaseEnvironment


class GuessNumber(BaseEnvironment):
    """A number from 1 to `highest` (16 unless told) to be found in `max_steps` guesses. A hit pays 1.

    Example:
        >>> game = GuessNumber({"highest": 4})
        >>> game.reset(seed=3)
        'Guess my number, from 1 to 4.'
        >>> game.step("Is it 1?")
        ('Higher than 1.', 0.0, False, {'guess': 1})
        >>> game.step("2")
        ('Yes, it is 2.', 1.0, True, {'guess': 2, 'success': True})
    """

    target: int = 0

    @property
    def highest(self) -> int:
        """The largest number it can be."""
        return int(self.config.get("highest", 16))

    def reset(self, seed: int = 0) -> str:
        """Choose the number; episodes with the same seed get the same."""
        self.target = random.Random(seed).randint(1, self.highest)
        return f"Guess my number, from 1 to {self.highest}."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, int | bool]]:
        """Answer a guess: the first number in what the model said counts."""
        # At most 9 digits: Python refuses to read an integer of thousands of them, and models do write such things.
        found = re.search(r"\d{1,9}", action)
        if found is None:
            return f"Answer with a number from 1 to {self.highest}.", 0.0, False, {}
        guess = int(found.group())
        if guess == self.target:
            return f"Yes, it is {guess}.", 1.0, True, {"guess": guess, "success": True}
        return f"{'Higher' if guess < self.target else 'Lower'} than {guess}.", 0.0, False, {"guess": guess}

    def get_prompt_prefix(self) -> str:
        """Tell the model how to answer."""
        return "You guess a number. Answer with one number and nothing else."
