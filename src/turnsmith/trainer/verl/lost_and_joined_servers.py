"""Rollout servers that are lost, and servers that join, while training goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import ray
from ray._private import state
from ray.exceptions import ActorUnavailableError, ActorUnschedulableError, OutOfMemoryError, RayActorError, RayError
from verl.checkpoint_engine.base import CheckpointEngineManager, _worker_cls
from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup
from verl.utils.ray_utils import auto_await

from turnsmith.concurrency.loop_thread import LoopThread
from turnsmith.errors import TrainingFailure
from turnsmith.trainer.config.layout import server_cpus

ACTOR_LOST = (RayActorError, OutOfMemoryError)
"""Errors of a call to a lost actor; the second one if Ray's memory monitor killed its process."""
SERVER_LOST = (*ACTOR_LOST, ActorUnschedulableError)
"""The same for a rollout server; the last one if Ray would restart it on a lost node."""
RESTART_SECONDS = 300.0
"""How long a server may be out of reach while Ray restarts it, or cannot connect to it."""
_GONE_SECONDS = 10.0
"""How long a server may take to end after its engine has failed a call."""
_LOOK_SECONDS = 0.5


def is_gone(name: str) -> bool:
    """Whether the actor with this name has ended for good; not while Ray restarts it."""
    # `ray.get_actor` still finds a dead actor in a process that has called it before.
    return name not in ray.util.list_named_actors()


async def unless_lost(call: Callable[[], Awaitable[Any]], is_lost: Callable[[], bool], *, once: bool = False) -> Any:
    """Call a server; does nothing if the server is lost, or about to end because its engine has ended.

    A server that is only out of reach is called again, because it may have missed the call.

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
            if isinstance(error, TrainingFailure):  # the server said so itself
                raise
            repeats = isinstance(error, ACTOR_LOST) and not once
            until = until or time.monotonic() + (RESTART_SECONDS if repeats else _GONE_SECONDS)
            if await _becomes_lost(is_lost, 0.0 if repeats else until):
                return None
            if time.monotonic() > until:
                raise


class LivingReplicas(CheckpointEngineManager):
    """verl's manager of weights for servers on GPUs of their own, without the servers whose nodes are lost.

    A process beside each server receives the weights. It goes on doing so if only the server is lost, so nothing is
    left out. If that process is lost, so is its server.
    """

    @auto_await
    async def update_weights(self, global_steps: int = 0) -> dict[str, Any]:
        """Send the weights to all remaining servers, and again if one is lost during that.

        Raises:
            TrainingFailure: No server is left.
        """
        while True:
            await self._leave_out_lost()
            try:
                return await self._transfer(global_steps)
            except RayError:
                if not await self._leave_out_lost():
                    raise

    async def _transfer(self, version: int) -> dict[str, Any]:
        """As verl's, but when an error is raised every call has ended, so that the next transfer meets none of them."""
        workers = [worker for replica in self.replicas for worker in replica.workers]
        servers = RayWorkerGroup(worker_handles=workers, ray_cls_with_init=RayClassWithInitArgs(cls=_worker_cls))
        await self.abort_replicas()
        await self.release_kv_cache_replicas()
        self.build_process_group(servers)
        calls = self.actor_wg.update_weights(global_steps=version, mode=self.backend)
        calls += servers.update_weights(global_steps=version)
        ray.wait(calls, num_returns=len(calls))
        ray.get(calls)
        groups = (self.actor_wg, servers)
        ray.get([call for group in groups for call in group.execute_checkpoint_engine(["finalize"] * group.world_size)])
        await self.resume_kv_cache_replicas()
        await self.resume_generation_replicas()
        return {}

    async def _leave_out_lost(self) -> int:
        lost = [replica for replica in self.replicas if await _has_lost_receivers(replica)]
        self.remove_replicas(lost)
        for replica in lost:
            for server in replica.servers:  # else it would generate with old weights
                ray.kill(server)
            free_gpus(replica)
        if not self.replicas:
            raise TrainingFailure("All nodes with rollout servers were lost.")
        return len(lost)


def free_gpus(replica: Any) -> None:
    """Release the GPUs that a replica has reserved.

    Until then, Ray 2.60 keeps trying to place a lost node's reservation, which takes a core or two.
    """
    for group in replica.resource_pool.pgs if replica.resource_pool else ():
        ray.util.remove_placement_group(group)


async def _has_lost_receivers(replica: Any) -> bool:
    """Whether a process that receives weights is lost; waits while one is only out of reach."""
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
    """Whether the server is lost now, or becomes lost before `until`."""
    while not is_lost():
        await asyncio.sleep(_LOOK_SECONDS)
        if time.monotonic() > until:
            return False
    return True


@dataclass(frozen=True)
class _Start:
    """Servers that are being started for a node."""

    address: str
    replicas: list[Any]
    loop: LoopThread
    done: Future[Any]


class JoinedServers:
    """Starts rollout servers when a node joins that has the GPUs for them.

    Args:
        manager: verl's manager of the servers that the run began with.
        warn: Called with a sentence when a node joins, and when its servers cannot be started.
    """

    def __init__(self, manager: Any, warn: Callable[[str], None]) -> None:
        self._manager = manager
        self._warn = warn
        self._known = {node["NodeID"] for node in ray.nodes()}
        self._next = manager.start_rank + len(manager.rollout_replicas)
        self._starting: list[_Start] = []

    def poll(self) -> list[Any]:
        """Start servers for new nodes, and return the replicas whose servers have come up since the last call."""
        for node in ray.nodes():
            if node["Alive"] and node["NodeID"] not in self._known:
                self._known.add(node["NodeID"])
                self._begin(node)
        ready: list[Any] = []
        for start in [start for start in self._starting if start.done.done()]:
            self._starting.remove(start)
            start.loop.close()
            if error := start.done.exception():
                self._warn(f"The rollout servers of the new node {start.address} did not start: {error!r}")
                for replica in start.replicas:
                    free_gpus(replica)
            else:
                self._warn(
                    f"The node {start.address} has joined; rollout servers that it brings: {len(start.replicas)}."
                )
                ready += start.replicas
        return ready

    def _begin(self, node: dict[str, Any]) -> None:
        config, address = self._manager.rollout_config, node["NodeManagerAddress"]
        gpus, tensor_parallel = int(config.n_gpus_per_node), int(config.tensor_model_parallel_size)
        free: Any = state.available_resources_per_node().get(node["NodeID"], node["Resources"])
        if gpus < tensor_parallel:
            self._warn(f"The node {address} has joined, but a rollout server takes several nodes; it is not used.")
            return
        if free.get("GPU", 0) < gpus or free.get("CPU", 0) < server_cpus(gpus):
            self._warn(
                f"The node {address} has joined without {gpus} GPUs and {server_cpus(gpus)} CPUs free for rollout "
                "servers; it is not used."
            )
            return
        replicas = [
            self._manager.rollout_replica_class(
                replica_rank=self._next + place,
                config=config,
                model_config=self._manager.model_config,
                gpus_per_node=gpus,
            )
            for place in range(gpus // tensor_parallel)
        ]
        self._next += len(replicas)
        # In a thread of its own: starting takes a minute, in which episodes and updates go on.
        loop = LoopThread("joined-servers")
        self._starting.append(_Start(address, replicas, loop, loop.start(_start(replicas))))


async def _start(replicas: list[Any]) -> None:
    await asyncio.gather(*[replica.init_standalone() for replica in replicas])
