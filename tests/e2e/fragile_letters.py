"""Three turns for a letter, in an environment that brings its process down, once in a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.e2e.three_letters import ThreeLetters


class FragileLetters(ThreeLetters):
    """Says which process it is in."""

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        observation, reward, done, _ = super().step(action)
        if self.step_count == 2:
            try:
                (Path(str(self.config.folder)) / "crashed").touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os._exit(9)
        return observation, reward, done, {"process": os.getpid()}


def last_process(trajectory: Any, environment: FragileLetters) -> float:
    """A reward that needs the object: its own rewards, if it is where it said it was."""
    assert trajectory.infos[-1]["process"] == os.getpid()
    return sum(trajectory.rewards) * (environment.step_count == 3)
