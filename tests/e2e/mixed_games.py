"""Environments of different difficulty, and mixes of them, for the end-to-end tests."""

from __future__ import annotations

import zlib
from typing import Any

from turnsmith import BaseEnvironment, EnvironmentMix, MixMember


class Toss(BaseEnvironment):
    """Pays for about half of all answers; which ones follows from the answer, so that a repeated run is the same."""

    def reset(self, seed: int = 0) -> str:
        """Ask; the question differs with the seed."""
        return f"Say something about {seed}."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Take two answers."""
        self.step_count += 1
        won = zlib.crc32(action.encode()) % 2 == 0
        return "And more.", float(won), self.step_count == 2, {"success": won}


class Easy(BaseEnvironment):
    """Pays 10 for anything."""

    def reset(self, task: dict[str, str]) -> str:
        """Ask what the task says."""
        return task["question"]

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Take one answer."""
        return "", 10.0, True, {"success": True}


CURRICULUM = EnvironmentMix(
    {
        "toss": MixMember(Toss, reward_range=(0, 2)),
        "easy": MixMember(
            Easy, reward_range=(0, 10), dataset=[{"question": word} for word in ("What?", "Who?", "Why?")]
        ),
    },
    curriculum=True,
)
