"""An environment that takes a seat of a simulator in `reset`, and only `close` frees it: a kill leaves it taken."""

from __future__ import annotations

import os
import time
from pathlib import Path

from turnsmith import BaseEnvironment

SEATS = 20


class LeasedGame(BaseEnvironment):
    """Any answer is right, and takes a moment."""

    def reset(self, seed: int = 0) -> str:
        self.answers = 0
        for seat in range(SEATS):
            path = Path(os.environ["LEASED_SEATS"]) / str(seat)
            try:
                path.touch(exist_ok=False)
            except FileExistsError:
                continue
            self.seat = path
            return f"Say {seed}."
        raise RuntimeError(f"all {SEATS} seats of the simulator are taken")

    def step(self, action: str) -> tuple[str, float, bool, dict[str, object]]:
        time.sleep(3)
        self.answers += 1
        return "Again.", float(len(action) % 2), self.answers == 3, {}

    def close(self) -> None:
        if seat := vars(self).pop("seat", None):
            seat.unlink(missing_ok=True)
