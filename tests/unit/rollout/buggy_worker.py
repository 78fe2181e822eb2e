"""An environment that plants a bug of turnsmith in the worker process that it runs in."""

from __future__ import annotations

from typing import Any

import turnsmith.env.local_host as here
from turnsmith import BaseEnvironment


class BuggyWorker(BaseEnvironment):
    def reset(self) -> str:
        return "Say something."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        here.read_step = None  # pyright: ignore[reportAttributeAccessIssue]
        return "And again.", 1.0, False, {}
