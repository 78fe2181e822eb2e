"""Finds what a worker has used up: leaks, and changes to the process itself, affect all later environments.

Runs in the worker, which is replaced before its episodes fail. Use is counted from the first environment on, so that an
environment that needs much from the beginning does not wear out its worker.
"""

from __future__ import annotations

import errno
import locale
import os
import resource
from contextlib import suppress
from pathlib import Path

from turnsmith.concurrency.environment_threads import EnvironmentThreads
from turnsmith.env.isolation import messages as m

SHARE = 0.75
"""A worker is used up when this share of what its first environment had left is used."""
_SIGNALS = 2**31 - 1  # without those that the C library keeps for its threads
_USUAL_STACK = 8 * 2**20
_KIB = 1024


class WorkerUsage:
    """Compares what the process uses with its limits.

    Args:
        threads: The worker's own threads, which are not counted.
    """

    def __init__(self, threads: EnvironmentThreads) -> None:
        self._threads = threads
        self._memory, processes = (
            int(os.environ.get(f"TURNSMITH_WORKER_{name}", 0)) for name in ("MEMORY", "PROCESSES")
        )
        self._most_threads = _most_threads(processes)
        self._folder: Path | None = None
        with suppress(OSError):  # a process can begin in a folder that is gone
            self._folder = Path.cwd()
        self._first: dict[m.Wear, tuple[int, int]] = {}
        self._first_settings: dict[m.Wear, object] = {}

    def used_up(self, error: BaseException | None = None) -> m.UsedUp | None:
        """What is used up, if anything is.

        Args:
            error: What was raised in the worker.
        """
        what = _exhausted(error)
        if what is None:
            try:
                return self._compare()
            except OSError as failure:  # counting takes a descriptor too
                what = _exhausted(failure)
        return m.UsedUp(0, what) if what is not None else None

    def _compare(self) -> m.UsedUp | None:
        status = _status()
        counts, settings = self._counts(status), _settings(status)
        if not self._first:
            self._first, self._first_settings = counts, settings
        if self._folder and _is_folder_lost():
            with suppress(OSError):  # open environments can go on
                os.chdir(self._folder)
            return m.UsedUp(0, "folder")
        for what, (used, limit) in counts.items():
            first = self._first[what][0]
            if limit > 0 and used - first > SHARE * (limit - first):
                return m.UsedUp(0, what, used, limit)
        return next((m.UsedUp(0, what) for what in settings if settings[what] != self._first_settings[what]), None)

    def _counts(self, status: dict[str, str]) -> dict[m.Wear, tuple[int, int]]:
        """What is used, and the limit; 0 if there is none."""
        own = self._threads.limit
        return {
            "files": (sum(1 for _ in Path("/proc/self/fd").iterdir()), resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
            "threads": (max(0, int(status["Threads"]) - own), max(0, self._most_threads - own)),
            "memory": (int(status["VmRSS"].split()[0]) * _KIB, self._memory),
        }


def _settings(status: dict[str, str]) -> dict[m.Wear, object]:
    """The state that a process has once. Python changes signal handlers only in the main thread, libraries anywhere."""
    handled = tuple(int(status[name], 16) & _SIGNALS for name in ("SigIgn", "SigCgt"))
    return {"locale": locale.setlocale(locale.LC_ALL), "signals": handled}


def _is_folder_lost() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def _most_threads(processes: int) -> int:
    """How many threads the process can have: their stacks count as its data."""
    data, stack = resource.getrlimit(resource.RLIMIT_DATA)[0], resource.getrlimit(resource.RLIMIT_STACK)[0]
    most = data // (stack if 0 < stack < 2**30 else _USUAL_STACK) if data != resource.RLIM_INFINITY else processes
    return min(most, processes or most)


def _status() -> dict[str, str]:
    lines = Path("/proc/self/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _exhausted(error: BaseException | None) -> m.Wear | None:
    """The resource that is used up according to an error or its causes."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return "files"
        if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
            return "threads"
        error = error.__cause__ or error.__context__
    return None
