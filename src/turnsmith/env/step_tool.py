"""A tool whose call is a step of the environment, for tools that are known only at run time, such as a server's."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from turnsmith.env.result import StepResult
from turnsmith.tools.definition import ToolDefinition
from turnsmith.tools.tool import Tool


class StepTool(Tool):
    """One of an environment's `step_tools`: `step` gets the call, and its reward, end and info count.

    Example:
        >>> import asyncio
        >>> async def step(action):
        ...     return StepResult(f"You did {action}", reward=1.0)
        >>> opening = StepTool(ToolDefinition("open"), step, limit=5)
        >>> asyncio.run(opening.execute(door=3))
        'You did {"name": "open", "arguments": {"door": 3}}'
        >>> opening.take().reward, opening.take()
        (1.0, None)
    """

    grace = 60.0  # whoever steps keeps the time limit, and says so earlier than this

    def __init__(
        self, definition: ToolDefinition, step: Callable[[str], Awaitable[StepResult]], *, limit: float
    ) -> None:
        super().__init__(definition)
        self.time_limit = limit
        self._step = step
        self._taken: StepResult | Exception | None = None

    async def execute(self, **arguments: Any) -> str:
        """Step the environment; returns the observation."""
        try:
            self._taken = await self._step(json.dumps({"name": self.definition.name, "arguments": arguments}))
        except Exception as error:
            self._taken = error
            raise
        return self._taken.observation

    def take(self) -> StepResult | None:
        """What the last call did, once; None: it was refused before the step. Raises what the step raised."""
        taken, self._taken = self._taken, None
        if isinstance(taken, Exception):
            raise taken
        return taken
