"""An environment that plants a bug of turnsmith in the processes of its run, in the middle of the first step."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import ray

from tests.e2e.three_letters import ThreeLetters


class PlantsBug(ThreeLetters):
    """`environment.bug`, as `module:name`, is None from the second turn on, but not in the user's own process."""

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        module, _, name = str(self.config.bug).partition(":")
        if self.step_count == 1 and ray.is_initialized():
            setattr(import_module(module), name, None)
        return super().step(action)
