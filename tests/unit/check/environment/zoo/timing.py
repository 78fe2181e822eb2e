"""Environments that take too long, or let others wait."""

from __future__ import annotations

import time
from typing import Any


class NearLimit:
    """A step takes most of the time that a call may take."""

    def reset(self, seed: int = 0) -> str:
        return "Go."

    def step(self, action: str) -> Any:
        time.sleep(0.06)
        return "", 0.0, True, {}


class OverLimit:
    """The third step takes longer than a call may take."""

    steps = 0

    def reset(self, seed: int = 0) -> str:
        return "Go."

    def step(self, action: str) -> Any:
        self.steps += 1
        time.sleep(0.15 * (self.steps == 2))
        return "On.", 0.0, self.steps == 2, {}


class BlockingStep:
    """Sleeps in an `async` method, so that no other episode runs meanwhile."""

    async def reset(self, seed: int = 0) -> str:
        return "Go."

    async def step(self, action: str) -> Any:
        time.sleep(0.1)  # long beside what another process takes of the core
        return "", 0.0, True, {}
