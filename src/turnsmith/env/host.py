"""The interface between an episode and its environment, in this process or another."""

from __future__ import annotations

from typing import Any, Protocol

from turnsmith.concurrency.environment_threads import EnvironmentThread, EventLoopThread
from turnsmith.env.isolation.settings import HERE
from turnsmith.env.local_host import EnvironmentHost
from turnsmith.env.opening import Speaker
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.tools.step_result import StepResult
from turnsmith.tools.tool import Tool


class Host(Protocol):
    """The environment of one episode. All its errors are raised as `EnvironmentFailure`."""

    environment: Any
    """The user's object, or a `RemoteEnvironment` for it; None before `reset`."""
    examples: tuple[tuple[Speaker, str], ...]
    """The messages that `reset` put between the system prompt and the first observation."""

    async def reset(self, seed: int = 0, task: dict[str, Any] | None = None) -> str:
        """Build the environment, start its episode and return the first observation."""
        ...

    @property
    def limit(self) -> float:
        """Timeout of one call, in seconds."""
        ...

    @property
    def thread(self) -> EnvironmentThread | EventLoopThread | None:
        """The thread that the object belongs to; None before `reset`, or if it is in another process."""
        ...

    def prompt_prefix(self) -> str:
        """The environment's system prompt, as it was after `reset`."""
        ...

    def tools(self) -> list[Tool]:
        """Its `@tool` methods, which are called where the object lives, and those whose calls are steps."""
        ...

    async def step(self, action: str) -> StepResult:
        """Do one action."""
        ...

    async def is_over(self) -> bool:
        """Whether the environment says that its task is over, without a step; a tool call may have ended it."""
        ...

    async def solve(self) -> Any:
        """What the environment's own `solve` returns: an action, a list of them, or None."""
        ...

    async def close(self) -> None:
        """Close the environment. Never raises."""
        ...


def open_host(spec: EnvironmentSpec) -> Host:
    """A host for one episode, in the mode of its spec.

    Example:
        >>> type(open_host(EnvironmentSpec("my_game:MyGame", isolation="process"))).__name__
        'RemoteHost'
    """
    if spec.mode in HERE:
        return EnvironmentHost(spec)
    from turnsmith.env.isolation.remote_host import RemoteHost

    return RemoteHost(spec)
