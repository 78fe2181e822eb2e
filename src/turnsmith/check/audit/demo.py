"""A small quiz with three mistakes that are easily made, for `turnsmith check --demo`."""

from __future__ import annotations

import random
import re
from typing import Any

from turnsmith.env.base import BaseEnvironment


class Quiz(BaseEnvironment):
    """Adds two numbers."""

    reward_range = (0.0, 1.0)

    def reset(self, seed: int = 0) -> str:
        """Draw the numbers from the seed."""
        draw = random.Random(seed)
        self.numbers = draw.randint(10, 99), draw.randint(100, 999)
        self.right = str(sum(self.numbers))
        return f"What is {self.numbers[0]} + {self.numbers[1]}? Write the answer as <answer>NUMBER</answer>."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Score the answer."""
        said = re.findall(r"<answer>(.*?)</answer>", action[-200:])  # mistake 1: what is written before is not read
        if any(self.right in one for one in said):  # mistake 2: one of many answers is enough
            return "", 1.0, True, {}
        return "", float("sorry" in action), True, {}  # mistake 3: an apology is paid like a right answer

    def solve(self) -> str:
        """The right answer."""
        return f"<answer>{self.right}</answer>"
