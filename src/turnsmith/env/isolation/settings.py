"""The settings `environment.isolation*`, validated."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

from turnsmith.concurrency.threads import cores
from turnsmith.errors import ConfigError

HERE = ("loop", "thread")
"""Modes that run environments in the process of the episode."""
OWN = "own_process"
"""The mode in which each environment has a worker process of its own, from its start to its end."""
PROCESSES = ("process", OWN)
"""Modes that run them in worker processes on this machine."""
ENVIRONMENTS = 1000
"""Limit on environments in one worker; further episodes wait for a place."""
_MOST_WORKERS = 8
_MOST_OWN, _OWN_MEMORY = 64, 2**29
"""The default number of workers with one environment: as many as fit into memory, at this size, up to this number."""
_PROCESSES = 4096


@dataclass(frozen=True, slots=True)
class Isolation:
    """Where environments run, and what each worker may use.

    Example:
        >>> from turnsmith.config import EnvironmentConfig
        >>> Isolation.of(EnvironmentConfig(isolation="process", isolation_workers=2)).workers
        2
        >>> Isolation.of(EnvironmentConfig(isolation="docker"))
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: environment.isolation='docker' is unknown: use auto, loop, thread, process \
or own_process.
    """

    mode: str
    """`auto`, `loop`, `thread` or `process`."""
    workers: int = 1
    memory: int = 0
    """Memory limit of one worker, in bytes."""
    processes: int = _PROCESSES
    """Limit on processes that the environments of one worker may have started."""
    environments: int = ENVIRONMENTS
    """Limit on environments in one worker. With 1 a worker hosts one, and ends with it."""

    @classmethod
    def of(cls, config: Any, mode: str = "") -> Isolation:
        """Read the settings of an environment; `mode` overrides its `isolation`."""
        mode = mode or str(getattr(config, "isolation", "auto"))
        if mode.startswith("tcp://") or getattr(config, "isolation_token_file", ""):
            where = mode.removeprefix("tcp://") if mode.startswith("tcp://") else "host:port"
            raise ConfigError(
                "There is no environment.isolation=tcp:// any more, nor environment.isolation_token_file: play "
                f"openenv://{where} as the environment, which `turnsmith serve --environment` serves, with "
                "environment.token_file if it needs a token."
            )
        workers = getattr(config, "isolation_workers", 0)
        gib = getattr(config, "isolation_memory_gib", 0.0)
        seconds = getattr(config, "call_seconds", 120.0)
        processes = getattr(config, "isolation_processes", _PROCESSES)
        for name, value, least in (
            ("isolation_workers", workers, 0),
            ("isolation_memory_gib", gib, 0),
            ("isolation_processes", processes, 1),
        ):
            if not _is_number(value) or value < least:
                raise ConfigError(f"environment.{name}={value!r} must be a number of at least {least}.")
        if not _is_number(seconds) or not seconds > 0:
            raise ConfigError(f"environment.call_seconds={seconds!r} must be a number above 0.")
        given, workers = int(workers), int(workers) or min(_MOST_WORKERS, cores())
        memory = int(gib * 2**30) or _machine_memory() // (2 * workers)
        is_own = mode == OWN  # for macOS, the types know after the next lines that it is not
        if mode not in ("auto", *HERE, *PROCESSES):
            known = ", ".join(("auto", *HERE, *PROCESSES[:-1]))
            raise ConfigError(f"environment.isolation={mode!r} is unknown: use {known} or {OWN}.")
        if mode in PROCESSES and sys.platform != "linux":
            raise ConfigError(
                f"environment.isolation={mode} needs Linux, whose kernel ends a worker with all that it started: "
                "use environment.isolation=thread, or play openenv://host:port of a `turnsmith serve --environment` on "
                "Linux."
            )
        if is_own:
            workers = given or max(1, min(_MOST_OWN, _machine_memory() // _OWN_MEMORY))
            return cls("process", workers, memory, processes=int(processes), environments=1)
        return cls(mode, workers, memory, processes=int(processes))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def _machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
