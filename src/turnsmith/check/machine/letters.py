"""The environment of short runs: two turns, with a reward that any model varies in."""

from __future__ import annotations

from turnsmith.env.base import BaseEnvironment


class CountLetters(BaseEnvironment):
    """The share of a letter in what the model says, over two turns."""

    def reset(self, seed: int | None = None) -> str:
        """Ask for a letter; the seed decides which."""
        self.letter = "aeio"[(seed or 0) % 4]
        return f"Say words with many {self.letter}."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, bool]]:
        """Count it."""
        self.step_count += 1
        reward = action.lower().count(self.letter) / max(len(action), 1) - 0.001 * len(action)
        return "More.", reward, self.step_count == 2, {"success": reward > 0}
