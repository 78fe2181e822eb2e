"""The environment server: a worker process for each connection, which hosts the one environment that is served.

A client can build and play that environment with settings of its own, nothing else: nothing that it sends is unpickled,
and no name that it sends is imported. There is no authentication: whoever reaches the port can play.
"""

from __future__ import annotations

import socket
import subprocess
import time

from turnsmith.env.isolation.launch import start_supervisor
from turnsmith.env.isolation.settings import Isolation

_PAUSE = 0.2


def serve_forever(listener: socket.socket, limits: Isolation, environment: str) -> None:
    """Start a worker for each connection, at most `limits.workers` at a time; others wait. Never returns.

    Args:
        listener: A listening socket.
        limits: How many workers there may be, and what each may use.
        environment: The environment to serve, as `module:Name`.
    """
    listener.settimeout(_PAUSE)
    supervisors: list[subprocess.Popen[bytes]] = []
    while True:
        supervisors = [supervisor for supervisor in supervisors if supervisor.poll() is None]
        if len(supervisors) >= limits.workers:
            time.sleep(_PAUSE)
            continue
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        with connection:
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            supervisors.append(start_supervisor(connection, limits.memory, limits.processes, environment))
