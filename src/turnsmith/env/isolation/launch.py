"""Starts a worker process, or connects to a server of them, and says how a worker ended."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from typing import Protocol

from turnsmith import supervisor
from turnsmith.env.isolation import messages as m
from turnsmith.env.isolation.handshake import keep_alive, read_token, show_token
from turnsmith.env.isolation.settings import Isolation
from turnsmith.errors import WorkerLost
from turnsmith.importing import hiding_files

logger = logging.getLogger(__name__)

_WORKER = "turnsmith.env.isolation.worker"
_SUPERVISOR_SECONDS = 40.0
"""Longest wait for a supervisor to end its worker; it needs this long only for processes that cannot be killed."""
_CONNECT_SECONDS = 30.0


class WorkerProcess(Protocol):
    """A worker that runs."""

    connection: socket.socket

    async def wait(self) -> str:
        """Wait until no process of it is left, once the connection is closed; returns how it ended."""
        ...


async def launch(isolation: Isolation) -> WorkerProcess:
    """Start a worker on this machine, or connect to a server's.

    Raises:
        WorkerLost: That is not possible.
    """
    try:
        return LocalWorker(isolation) if isolation.mode == "process" else await ServerWorker.connect(isolation)
    except OSError as error:
        where = "{}:{}".format(*isolation.address) if isolation.mode == "tcp" else "this machine"
        raise WorkerLost(f"No worker for environments could be reached on {where}: {error}.") from error


def start_supervisor(
    connection: socket.socket, memory: int, processes: int, only: str = "", idle_seconds: float = 0.0
) -> subprocess.Popen[bytes]:
    """Start a worker under its supervisor, on `connection`; the caller closes its own copy of that."""
    limits = (str(memory), str(processes))
    words = ("worker", _WORKER, str(connection.fileno()), *limits, only, str(idle_seconds))
    return subprocess.Popen(
        # By path: the supervisor itself must not import this package, which would make it ten times as large.
        [sys.executable, "-P", supervisor.__file__, *words],
        pass_fds=(connection.fileno(),),
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the process that started it, which then ends its workers
        env={**os.environ, supervisor.SEARCH_PATH: os.pathsep.join(sys.path)},
    )


class LocalWorker:
    """A worker on this machine, started by this process."""

    def __init__(self, isolation: Isolation) -> None:
        self.connection, there = socket.socketpair()
        self._isolation = isolation
        try:
            self._supervisor = start_supervisor(there, isolation.memory, isolation.processes)
        finally:
            there.close()

    async def wait(self) -> str:
        """Wait for its supervisor to exit."""
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + _SUPERVISOR_SECONDS, 0.001
        while self._supervisor.poll() is None:
            if loop.time() > deadline:
                self._supervisor.kill()  # takes the worker with it
            await asyncio.sleep(pause)
            pause = min(0.05, 2 * pause)
        return describe_exit(self._supervisor.returncode, self._isolation)


class ServerWorker:
    """A worker that an environment server has started for this connection, and looks after."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    @classmethod
    async def connect(cls, isolation: Isolation) -> ServerWorker:
        """Connect to `turnsmith serve-env`."""
        return cls(await asyncio.to_thread(_connect, isolation))

    async def wait(self) -> str:
        """There is nothing to wait for here."""
        return "is gone: the environment server closed the connection"


def _connect(isolation: Isolation) -> socket.socket:
    connection = socket.create_connection(isolation.address, _CONNECT_SECONDS)
    try:
        keep_alive(connection)
        show_token(connection, read_token(isolation.token_file))
    except BaseException:
        connection.close()
        raise
    return connection


def describe_exit(code: int, isolation: Isolation) -> str:
    """How a worker ended, by the exit code of its supervisor.

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
    return f"exited with status {code}{hiding_files()}"


def tell_of_limit(code: int, isolation: Isolation, environments: int) -> None:
    """Say once why workers are lost to a limit: retrying their episodes takes time, and may end in the same."""
    if code in (supervisor.OUT_OF_MEMORY, supervisor.TOO_MANY_PROCESSES) and code not in _told:
        _told.add(code)
        logger.warning(
            "A worker process with %s environments %s; their episodes begin again in others.",
            environments,
            describe_exit(code, isolation),
        )


def tell_of_wear(used_up: m.UsedUp) -> None:
    """Say once why a worker is replaced."""
    if used_up.what not in _told:
        _told.add(used_up.what)
        logger.warning(
            "A worker process is replaced when its environments have ended, because %s. `turnsmith check` finds which "
            "environment does it.",
            describe_wear(used_up),
        )


def describe_wear(used_up: m.UsedUp) -> str:
    """What is used up.

    Example:
        >>> describe_wear(m.UsedUp(0, "files", 790, 1024)), describe_wear(m.UsedUp(0, "folder"))
        ('they have 790 of 1,024 files open', 'their working folder was removed')
    """
    match used_up.what:
        case "folder":
            return "their working folder was removed"
        case "locale":
            return "one of them changed the locale"
        case "signals":
            return "one of them changed signal handlers"
        case "memory":
            return f"they take {used_up.used / 2**30:.3g} of {used_up.limit / 2**30:.3g} GiB of memory"
        case "files" | "threads":
            if not used_up.limit:
                return f"there are no more {used_up.what} for them"
            end = "files open" if used_up.what == "files" else "threads"
            return f"they have {used_up.used:,} of {used_up.limit:,} {end}"


_told: set[int | str] = set()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
