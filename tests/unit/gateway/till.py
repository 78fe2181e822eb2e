"""An environment to serve, with everything that its protocol has to carry."""

from __future__ import annotations

import os
import time
from typing import Any

from turnsmith import BaseEnvironment, tool
from turnsmith.errors import ToolError


class Till(BaseEnvironment):
    def get_prompt_prefix(self) -> str:
        return "You keep a shop."

    def reset(self, seed: int = 0, task: dict[str, Any] | None = None) -> Any:
        self.sold = 0
        shown = [{"role": "user", "content": "A pear?"}, {"role": "assistant", "content": "Here."}]
        return [*shown, {"role": "user", "content": f"{seed} {task}"}]

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        if action == "raise":
            raise KeyError("sword")
        if action == "exit":
            os._exit(3)
        if action == "hang":
            time.sleep(2)
        return f"{self.sold} {action}", 0.5, action == "shut", {"success": self.sold > 0, "process": os.getpid()}

    @tool
    def sell(self, pieces: int) -> str:
        """Sell something."""
        if pieces == 0:
            raise ValueError("nothing")
        if pieces < 0:
            raise ToolError("That is no sale.")
        self.sold += pieces
        self.done = self.sold > 9
        return f"{self.sold} sold"
