"""An environment that tosses a coin for the reward, whatever the model says: half of all pairs are equal."""

from __future__ import annotations

import random

from turnsmith import BaseEnvironment


class Coin(BaseEnvironment):
    """Pays 0 or 1 for anything."""

    def reset(self, seed: int | None = None) -> str:
        return "Say something."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, object]]:
        return "ok", float(random.SystemRandom().random() < 0.5), True, {}


class NoCoin(Coin):
    """Pays nothing, ever."""

    def step(self, action: str) -> tuple[str, float, bool, dict[str, object]]:
        return "ok", 0.0, True, {}
