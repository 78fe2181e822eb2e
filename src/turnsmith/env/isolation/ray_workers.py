"""Workers on all nodes of a Ray cluster: an actor starts each, and steps go to it directly, not through Ray.

Ray finds the node and ends the actor with the run; the actor ends its worker. A step costs what it costs over TCP,
which is a tenth of a call of a Ray actor.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import threading
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError

from turnsmith.env.isolation.launch import RemoteWorker, connect
from turnsmith.env.isolation.server import serve_forever
from turnsmith.env.isolation.settings import Isolation
from turnsmith.errors import WorkerLost


class WorkerActor:
    """Serves one worker on the node it is on, to whoever has its token."""

    def __init__(self, isolation: Isolation) -> None:
        self._token = secrets.token_bytes(32)
        self._listener = socket.create_server(("", 0))
        limits = replace(isolation, workers=1)
        serving = threading.Thread(target=serve_forever, args=(self._listener, limits, "", self._token), daemon=True)
        serving.start()

    def address(self) -> tuple[str, int, bytes]:
        """Where it listens, and the token."""
        return ray.util.get_node_ip_address(), self._listener.getsockname()[1], self._token


class _Handle:
    """Ends an actor, and its worker with it."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def end(self) -> None:
        if not ray.is_initialized():  # then all its actors have ended, and `kill` would start Ray anew
            return
        try:
            ray.kill(self._actor)
        except (RayError, ValueError):  # it has ended, or belongs to a Ray that has
            pass


async def launch_on_ray(isolation: Isolation) -> RemoteWorker:
    """Start a worker on the node that has the fewest of them, and connect to it."""
    if not ray.is_initialized():
        raise WorkerLost(
            "environment.isolation=ray needs Ray: call ray.init() first, or set environment.isolation=process."
        )
    # Without a share of a CPU: on a node that has none left, an environment still waits most of the time.
    options: dict[str, Any] = {"num_cpus": 0, "scheduling_strategy": "SPREAD", "max_restarts": 0}
    actor: Any = ray.remote(WorkerActor).options(**options).remote(isolation)
    try:
        host, port, token = await asyncio.wrap_future(actor.address.remote().future())
        connection = await connect((host, port), token)
    except Exception as error:
        ray.kill(actor)
        raise WorkerLost(f"A worker for environments could not be started on Ray: {error}") from error
    return RemoteWorker(connection, "its node or its Ray actor ended, or it did", _Handle(actor))
