"""Calls to rollout servers that may be lost, or out of Ray's reach for the moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, ActorUnschedulableError, OutOfMemoryError, RayActorError, RayError
from verl.checkpoint_engine.base import CheckpointEngineManager
from verl.utils.ray_utils import auto_await

from turnsmith.errors import TrainingFailure

ACTOR_LOST = (RayActorError, OutOfMemoryError)
"""Errors of a call to an actor that is lost; the second one is Ray's if its memory monitor killed the process."""
SERVER_LOST = (*ACTOR_LOST, ActorUnschedulableError)
"""The same for a rollout server; the last one is Ray's if it would restart it on a lost node."""
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
            repeats = isinstance(error, ACTOR_LOST) and not once
            until = until or time.monotonic() + (RESTART_SECONDS if repeats else _GONE_SECONDS)
            if await _becomes_lost(is_lost, 0.0 if repeats else until):
                return None
            if time.monotonic() > until:
                raise


class LivingReplicas(CheckpointEngineManager):
    """verl's manager of weights for servers on GPUs of their own, which leaves out those whose node is lost.

    A process beside each server receives the weights. If only the server is lost, that process receives them in its
    place, and nothing is left out; if that process is lost, so is its server.
    """

    @auto_await
    async def update_weights(self, global_steps: int = 0) -> dict[str, Any]:
        """Send the weights to all servers that are there; again if one is lost meanwhile.

        Raises:
            TrainingFailure: None is left.
        """
        while True:
            await self._leave_out_lost()
            try:
                sent: dict[str, Any] = await super().update_weights(global_steps)
                return sent
            except RayError:
                if not await self._leave_out_lost():
                    raise

    async def _leave_out_lost(self) -> int:
        lost = [one for one in self.replicas if await _has_lost_receivers(one)]
        self.remove_replicas(lost)
        for one in lost:
            for server in one.servers:  # else it would generate with old weights
                ray.kill(server)
            free_gpus(one)
        if not self.replicas:
            raise TrainingFailure("All nodes with rollout servers were lost.")
        return len(lost)


def free_gpus(replica: Any) -> None:
    """Give back what a replica with GPUs of its own has reserved.

    Ray 2.60 tries to place what a lost node had without a pause, which takes a core or two, until it is given back.
    """
    for group in replica.resource_pool.pgs if replica.resource_pool else ():
        ray.util.remove_placement_group(group)


async def _has_lost_receivers(replica: Any) -> bool:
    """Whether a process that receives weights is lost; if one is only out of reach, waits for what becomes of it."""
    until = time.monotonic() + RESTART_SECONDS
    while True:
        try:
            await asyncio.gather(*[worker.__ray_ready__.remote() for worker in replica.workers])
            return False
        except ActorUnavailableError:
            if time.monotonic() > until:
                return True
            await asyncio.sleep(_LOOK_SECONDS)
        except ACTOR_LOST:
            return True


async def _becomes_lost(is_lost: Callable[[], bool], until: float) -> bool:
    """Look until the server is lost, at least once, and not beyond `until`."""
    while not is_lost():
        await asyncio.sleep(_LOOK_SECONDS)
        if time.monotonic() > until:
            return False
    return True
