"""What stands for an environment that is somewhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from turnsmith.tools.tool import Tool
    from turnsmith.trajectory import Trajectory


class _Caller(Protocol):
    async def score(self, function: Any, trajectory: Trajectory, seconds: float) -> Any: ...


class RemoteEnvironment:
    """The `environment` of a host whose environment is in another process: only its tools and a reward reach it.

    Example:
        >>> RemoteEnvironment("Game", None, []).board
        Traceback (most recent call last):
        AttributeError: Game runs in another process, where its 'board' is; environment.isolation=thread keeps it here.
    """

    def __init__(self, name: str, host: _Caller | None, tools: list[Tool]) -> None:
        self._name = name
        self._host = host
        self.remote_tools = tools
        """Its `@tool` methods; calling one calls it where it is."""

    async def score(self, function: Any, trajectory: Trajectory, seconds: float) -> Any:
        """Call `function(trajectory, environment)` where the environment is; returns what it pays."""
        if self._host is None:
            raise RuntimeError("there is no worker")
        return await self._host.score(function, trajectory, seconds)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{self._name} runs in another process, where its {name!r} is; environment.isolation=thread keeps it here."
        )
