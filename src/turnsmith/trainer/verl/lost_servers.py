"""Calls to a rollout server that may be lost, or out of Ray's reach for the moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

RESTART_SECONDS = 300.0
"""How long a server may be out of reach while Ray restarts it, or only cannot connect to it."""
_GONE_SECONDS = 10.0
"""How long a server may take to end after its engine has failed a call."""
_LOOK_SECONDS = 0.5


def is_gone(name: str) -> bool:
    """Whether the actor with this name has ended for good; not while Ray restarts it."""
    # `ray.get_actor` still finds an actor that has died, in a process that has called it before.
    return name not in ray.util.list_named_actors()


async def unless_lost(call: Callable[[], Awaitable[Any]], is_lost: Callable[[], bool], *, once: bool = False) -> Any:
    """Make a call to a server, which does nothing if the server is lost, or about to end because its engine is.

    A server that is only out of reach is called again, since it may have missed the call.

    Args:
        call: Makes the call.
        is_lost: Whether the server is lost.
        once: The call cannot be repeated.
    """
    until = 0.0
    while True:
        try:
            return await call()
        except (RayError, ConnectionError) as error:
            repeats = isinstance(error, RayActorError) and not once
            until = until or time.monotonic() + (RESTART_SECONDS if repeats else _GONE_SECONDS)
            if await _becomes_lost(is_lost, 0.0 if repeats else until):
                return None
            if time.monotonic() > until:
                raise


async def _becomes_lost(is_lost: Callable[[], bool], until: float) -> bool:
    """Look until the server is lost, at least once, and not beyond `until`."""
    while not is_lost():
        await asyncio.sleep(_LOOK_SECONDS)
        if time.monotonic() > until:
            return False
    return True
