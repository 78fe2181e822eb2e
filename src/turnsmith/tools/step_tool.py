"""Tools whose calls are steps of the environment: their rewards, ends and infos are those of the episode."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Any

from turnsmith.concurrency.environment_threads import EventLoopThread
from turnsmith.tools.definition import ToolDefinition
from turnsmith.tools.step_result import StepResult, read_step
from turnsmith.tools.tool import Tool


class StepTool(Tool):
    """One of an environment's `step_tools`, for tools that are known only at run time: `step` gets the call as JSON.

    Example:
        >>> import asyncio
        >>> async def step(action):
        ...     return StepResult(f"You did {action}", reward=1.0)
        >>> opening = StepTool(ToolDefinition("open"), step, limit=5)
        >>> result = asyncio.run(opening.execute(door=3))
        >>> result.observation, result.reward
        ('You did {"name": "open", "arguments": {"door": 3}}', 1.0)
    """

    is_step = True
    grace = 60.0  # the host of the environment keeps the time limit, and reports it earlier than this

    def __init__(
        self, definition: ToolDefinition, step: Callable[[str], Awaitable[StepResult]], *, limit: float
    ) -> None:
        super().__init__(definition)
        self.time_limit = limit
        self._step = step

    async def execute(self, **arguments: Any) -> StepResult:
        """Step the environment."""
        return await self._step(json.dumps({"name": self.definition.name, "arguments": arguments}))


class EnvironmentStepTool(Tool):
    """An environment's `step` as a tool: the model acts by calling `environment_step(action)`.

    In an episode, a call is a step of the episode's own environment, wherever that runs: `environment` only says of
    which class it is. Outside of one, `environment` itself is stepped.

    Example:
        >>> class Door:
        ...     def step(self, action):
        ...         return "It opens.", 1.0, True, {}
        >>> EnvironmentStepTool(Door()).execute("push")
        StepResult(observation='It opens.', reward=1.0, terminated=True, truncated=False, info={})
    """

    is_step = True

    def __init__(self, environment: Any) -> None:
        super().__init__()
        self.environment = environment

    def __reduce__(self) -> Any:
        # Other processes step their episodes' own environments, and this one may hold what cannot be sent there.
        return type(self), (self.environment_class,)

    @property
    def environment_class(self) -> type:
        """The class of the environments that it steps."""
        return self.environment if isinstance(self.environment, type) else type(self.environment)

    @cached_property
    def definition(self) -> ToolDefinition:
        """Name, description and argument schema, as the model sees them."""
        signature = self.signature
        return ToolDefinition("environment_step", signature.description, signature.parameters)

    def of_episode(self, environment: Any, limit: float) -> EnvironmentStepTool:
        """The tool of one episode: it steps `environment`, whose async `step` takes at most `limit` seconds."""
        own = copy.copy(self)
        own.environment, own.thread = environment, EventLoopThread()
        own.time_limit, own.grace = limit, StepTool.grace
        return own

    def execute(self, action: str) -> Any:
        """Take an action in the environment and see the outcome.

        Args:
            action: The action to take.
        """
        returned = self.environment.step(action)
        return self._finish(returned) if inspect.isawaitable(returned) else self._read(returned)

    async def _finish(self, returned: Any) -> StepResult:
        return self._read(await returned)

    def _read(self, returned: Any) -> StepResult:
        return read_step(f"{self.environment_class.__name__}.step", returned)
