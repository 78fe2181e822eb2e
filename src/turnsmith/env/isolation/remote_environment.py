"""Stands for an environment object that is in another process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from turnsmith.errors import EnvironmentFailure

if TYPE_CHECKING:
    from turnsmith.trajectory import Trajectory


class _Scorer(Protocol):
    async def score(self, function: Any, trajectory: Trajectory, seconds: float) -> Any: ...


class RemoteEnvironment:
    """The `environment` of a `RemoteHost`: only reward functions can be called with it.

    Example:
        >>> RemoteEnvironment("Game", None).board
        Traceback (most recent call last):
        AttributeError: Game runs in another process, so its 'board' cannot be read here; with \
environment.isolation=thread it can.
    """

    def __init__(self, name: str, host: _Scorer | None) -> None:
        self._name = name
        self._host = host

    async def score(self, function: Any, trajectory: Trajectory, seconds: float) -> Any:
        """Call `function(trajectory, environment)` in the worker; returns what it returned."""
        if self._host is None:
            raise EnvironmentFailure("there is no worker")
        return await self._host.score(function, trajectory, seconds)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{self._name} runs in another process, so its {name!r} cannot be read here; with "
            "environment.isolation=thread it can."
        )
