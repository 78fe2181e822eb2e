"""Environments whose texts do not fit."""

from __future__ import annotations

from typing import Any


class LongRow:
    """Shows a row of the dataset, of which the last is very long."""

    def reset(self, seed: int = 0, task: dict[str, Any] | None = None) -> str:
        return str((task or {}).get("text", ""))

    def step(self, action: str) -> Any:
        return "", 0.0, True, {}


class GrowingHistory:
    """Repeats the whole history in every observation."""

    history = ""

    def reset(self, seed: int = 0) -> str:
        self.history = "You are at the gate. "
        return self.history

    def step(self, action: str) -> Any:
        self.history += "You walk on along the wall, and see nothing but the wall. " * 4
        return self.history, 0.0, False, {}
