"""Starts a worker process, and says how a worker ended."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys

from turnsmith.concurrency import supervisor
from turnsmith.env.isolation import messages as m
from turnsmith.env.isolation.settings import Isolation
from turnsmith.errors import WorkerLost
from turnsmith.importing import hiding_files

logger = logging.getLogger(__name__)

_WORKER = "turnsmith.env.isolation.worker"
_SUPERVISOR_SECONDS = 40.0
"""The longest wait for a supervisor to end its worker; only processes that cannot be killed take this long."""


def start_supervisor(connection: socket.socket, memory: int, processes: int) -> subprocess.Popen[bytes]:
    """Start a worker under its supervisor, on `connection`; the caller closes its own copy of that."""
    words = ("worker", _WORKER, str(connection.fileno()), str(memory), str(processes))
    return subprocess.Popen(
        # By path, because importing this package would make the supervisor ten times as large.
        [sys.executable, "-P", supervisor.__file__, *words],
        pass_fds=(connection.fileno(),),
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C goes to the process that started it, which then ends its workers
        env={**os.environ, supervisor.SEARCH_PATH: os.pathsep.join(sys.path)},
    )


class WorkerProcess:
    """A worker that runs.

    Raises:
        WorkerLost: It cannot be started.
    """

    def __init__(self, isolation: Isolation) -> None:
        self.connection, there = socket.socketpair()
        self._isolation = isolation
        try:
            self._supervisor = start_supervisor(there, isolation.memory, isolation.processes)
        except OSError as error:
            self.connection.close()
            raise WorkerLost(f"No worker for environments could be started: {error}.") from error
        finally:
            there.close()

    async def wait(self) -> str:
        """Wait until none of its processes is left, after the connection was closed; returns how it ended."""
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + _SUPERVISOR_SECONDS, 0.001
        while self._supervisor.poll() is None:
            if loop.time() > deadline:
                self._supervisor.kill()  # takes the worker with it
            await asyncio.sleep(pause)
            pause = min(0.05, 2 * pause)
        return describe_exit(self._supervisor.returncode, self._isolation)


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
    """Warn once that workers are lost to a limit: retrying their episodes takes time, and may fail again."""
    if code in (supervisor.OUT_OF_MEMORY, supervisor.TOO_MANY_PROCESSES) and code not in _told:
        _told.add(code)
        logger.warning(
            "A worker process with %s environments %s; their episodes begin again in others.",
            environments,
            describe_exit(code, isolation),
        )


def tell_of_wear(used_up: m.UsedUp) -> None:
    """Warn once why a worker is replaced."""
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
