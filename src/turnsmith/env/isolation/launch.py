"""How a worker is started or reached, and how it ended."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from typing import Any, Protocol

from turnsmith.env.isolation import supervisor
from turnsmith.env.isolation.settings import Isolation
from turnsmith.errors import WorkerLost

_KEEPER_SECONDS = 40.0
"""Longest wait for a keeper to end what it keeps; it needs this long only for processes that cannot be killed."""
_CONNECT_SECONDS = 30.0


class WorkerHandle(Protocol):
    """A worker that runs."""

    connection: socket.socket

    async def ended(self) -> str:
        """Wait until nothing of it is left, once the connection is closed; how it ended, as in `was killed by ...`."""
        ...


async def launch(isolation: Isolation) -> WorkerHandle:
    """Start a worker, or connect to one."""
    try:
        if isolation.mode == "process":
            return LocalWorker(isolation)
        if isolation.mode == "tcp":
            return RemoteWorker(await connect(isolation.address), "The environment server closed the connection")
        from turnsmith.env.isolation.ray_workers import launch_on_ray

        return await launch_on_ray(isolation)
    except OSError as error:
        where = "{}:{}".format(*isolation.address) if isolation.mode == "tcp" else "this machine"
        raise WorkerLost(f"No worker for environments could be reached on {where}: {error}.") from error


def start_supervisor(connection: socket.socket, memory: int, processes: int, only: str = "") -> subprocess.Popen[bytes]:
    """Start a worker, in its keeper, that speaks over `connection`; the caller closes its own copy of that."""
    limits = (str(memory), str(processes))
    return subprocess.Popen(
        # By path: the keeper itself must not load this package, which would make it ten times as large.
        [sys.executable, "-P", supervisor.__file__, str(connection.fileno()), *limits, *([only] if only else [])],
        pass_fds=(connection.fileno(),),
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for us; what becomes of workers is ours to say
        env={**os.environ, supervisor.SEARCH_PATH: os.pathsep.join(sys.path)},
    )


class LocalWorker:
    """A worker on this machine, started by this process."""

    def __init__(self, isolation: Isolation) -> None:
        self.connection, there = socket.socketpair()
        self._isolation = isolation
        try:
            self._keeper = start_supervisor(there, isolation.memory, isolation.processes)
        finally:
            there.close()

    async def ended(self) -> str:
        """Wait for its keeper."""
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + _KEEPER_SECONDS, 0.001
        while self._keeper.poll() is None:
            if loop.time() > until:
                self._keeper.kill()  # takes the worker with it
            await asyncio.sleep(pause)
            pause = min(0.05, 2 * pause)
        return describe_exit(self._keeper.returncode, self._isolation)


class RemoteWorker:
    """A worker that somebody else has started."""

    def __init__(self, connection: socket.socket, reason: str, handle: Any = None) -> None:
        self.connection = connection
        self._reason = reason
        self._handle = handle

    async def ended(self) -> str:
        """Its own side looks after it."""
        if self._handle is not None:
            self._handle.end()
        return f"is gone: {self._reason}"


async def connect(address: tuple[str, int], token: bytes = b"") -> socket.socket:
    """A connection to a worker's server, after saying the token if it wants one."""
    connection = await asyncio.to_thread(socket.create_connection, address, _CONNECT_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(token)
    return connection


def describe_exit(code: int, isolation: Isolation) -> str:
    """How a worker ended, by the exit code of its keeper.

    Example:
        >>> describe_exit(139, Isolation("process")), describe_exit(3, Isolation("process"))
        ('was killed by SIGSEGV', 'exited with status 3')
    """
    if code == supervisor.OUT_OF_MEMORY:
        gib = isolation.memory / 2**30
        return f"took more than {gib:.3g} GiB of memory (environment.isolation_memory_gib allows more)"
    if code == supervisor.TOO_MANY_PROCESSES:
        return f"had started more than {isolation.processes} processes (environment.isolation_processes allows more)"
    if code > 128:
        return f"was killed by {_signal_name(code - 128)}"
    return f"exited with status {code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
