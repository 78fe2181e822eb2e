"""The environment of the end-to-end tests: three turns, each pays a third for saying only the letter it asks for."""

from __future__ import annotations

from typing import Any

from turnsmith import BaseEnvironment


class ThreeLetters(BaseEnvironment):
    """Asks for "a" three times."""

    def reset(self) -> str:
        """Ask for the first time."""
        return "Say a"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Pay for the share of the answer that is the letter."""
        self.step_count += 1
        return "Once more", action.count("a") / max(len(action), 1) / 3, self.step_count == 3, {}
