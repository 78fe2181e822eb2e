"""Three letters, with a sandboxed program in each turn."""

from __future__ import annotations

from typing import Any

from turnsmith import BaseEnvironment
from turnsmith.tools.sandbox.python_tool import run_python


class CheckedLetters(BaseEnvironment):
    """Asks for a letter three times; a program counts it in the answer."""

    def reset(self, seed: int = 0) -> str:
        """Ask for the first time."""
        self.letter = "abc"[seed % 3]
        return f"Say {self.letter}"

    async def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Pay for the share of the answer that is the letter."""
        result = await run_python(f"print({action!r}.count({self.letter!r}))")
        if not result.is_ok:
            raise RuntimeError(f"the program {result.ending}: {result.output}")
        self.step_count += 1
        return "Once more", int(result.output) / max(len(action), 1) / 3, self.step_count == 3, {}
