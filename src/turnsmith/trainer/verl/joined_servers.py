"""Rollout servers for nodes that join the Ray cluster of a running `separate_async` run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import ray
from ray._private import state

from turnsmith.loop_thread import LoopThread
from turnsmith.trainer.config.layout import server_cpus
from turnsmith.trainer.verl.lost_servers import free_gpus


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

    def look(self) -> list[Any]:
        """Begin to start servers for new nodes, and return the replicas whose servers are up since the last look."""
        for node in ray.nodes():
            if node["Alive"] and node["NodeID"] not in self._known:
                self._known.add(node["NodeID"])
                self._begin(node)
        ready: list[Any] = []
        for start in [one for one in self._starting if one.done.done()]:
            self._starting.remove(start)
            start.loop.close()
            if error := start.done.exception():
                self._warn(f"The rollout servers of the new node {start.address} did not start: {error!r}")
                for one in start.replicas:
                    free_gpus(one)
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
        # In a thread of its own, until they are up: that takes a minute, in which episodes and updates go on.
        loop = LoopThread("joined-servers")
        self._starting.append(_Start(address, replicas, loop, loop.start(_start(replicas))))


async def _start(replicas: list[Any]) -> None:
    await asyncio.gather(*[one.init_standalone() for one in replicas])
