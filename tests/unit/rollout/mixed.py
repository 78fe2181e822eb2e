"""Two environments in a mix. Their worker process imports this module, and therefore nothing that takes long."""

from __future__ import annotations

import os
from typing import Any

from turnsmith import BaseEnvironment, EnvironmentMix, MixMember, tool


class Counting(BaseEnvironment):
    """Pays 2 for each turn, and never ends by itself."""

    def reset(self, seed: int = 0) -> str:
        return "Count."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return "Go on.", 2.0, False, {"process": os.getpid()}


class Shop(BaseEnvironment):
    """Has a tool."""

    def reset(self) -> str:
        return "Buy something."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return "Thanks.", -3.0, True, {"success": action == "bye", "process": os.getpid()}

    @tool
    def price(self, what: str) -> str:
        """Say what something costs."""
        return f"{what} costs 3."


MIX = EnvironmentMix(
    {
        "counting": MixMember(Counting, max_turns=3, reward_range=(0, 8)),
        "shop": MixMember(Shop, reward_range=(-5, 5)),
    }
)
