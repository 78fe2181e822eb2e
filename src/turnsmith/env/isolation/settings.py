"""The settings `environment.isolation*`, validated."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

from turnsmith.errors import ConfigError
from turnsmith.threads import cores

HERE = ("loop", "thread")
"""Modes that run environments in the process of the episode."""
OWN = "own_process"
"""The mode in which each environment has a worker process to itself, from its start to its end."""
PROCESSES = ("process", OWN)
"""Modes that run them in worker processes on this machine."""
TCP = "tcp://"
ENVIRONMENTS = 1000
"""Limit on environments in one worker; further episodes wait for a place."""
_MOST_WORKERS = 8
_MOST_OWN, _OWN_MEMORY = 64, 2**29
"""Workers of one environment each, by default: as many as find so much memory each, but no more than these."""
_PROCESSES = 4096


@dataclass(frozen=True, slots=True)
class Isolation:
    """Where environments run, and what each worker may use.

    Example:
        >>> from turnsmith.config import EnvironmentConfig
        >>> Isolation.of(EnvironmentConfig(isolation="process", isolation_workers=2)).workers
        2
        >>> Isolation.of(EnvironmentConfig(isolation="tcp://10.0.0.7:9000")).address
        ('10.0.0.7', 9000)
        >>> Isolation.of(EnvironmentConfig(isolation="docker"))
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: environment.isolation='docker' is unknown: use auto, loop, thread, process, \
own_process or tcp://host:port.
    """

    mode: str
    """`auto`, `loop`, `thread`, `process` or `tcp`."""
    workers: int = 1
    memory: int = 0
    """Memory limit of one worker, in bytes."""
    address: tuple[str, int] = ("", 0)
    """Of the server, in mode `tcp`."""
    processes: int = _PROCESSES
    """Limit on processes that the environments of one worker may have started."""
    token_file: str = ""
    """The file with the token of the server, in mode `tcp`."""
    environments: int = ENVIRONMENTS
    """Limit on environments in one worker. With 1 a worker hosts one, and ends with it."""

    @classmethod
    def of(cls, config: Any, mode: str = "") -> Isolation:
        """Read the settings of an environment; `mode` overrides its `isolation`."""
        mode = mode or str(getattr(config, "isolation", "auto"))
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
        if mode.startswith(TCP):
            token_file = str(getattr(config, "isolation_token_file", ""))
            return cls("tcp", workers, memory, _address(mode), int(processes), token_file)
        if mode not in ("auto", *HERE, *PROCESSES):
            known = ", ".join(("auto", *HERE, *PROCESSES))
            raise ConfigError(f"environment.isolation={mode!r} is unknown: use {known} or tcp://host:port.")
        if mode in PROCESSES and sys.platform != "linux":
            raise ConfigError(
                f"environment.isolation={mode} needs Linux, whose kernel ends a worker with all that it started: "
                "use environment.isolation=thread, or tcp://host:port of a `turnsmith serve-env` on Linux."
            )
        if mode == OWN:
            workers = given or max(1, min(_MOST_OWN, _machine_memory() // _OWN_MEMORY))
            return cls("process", workers, memory, processes=int(processes), environments=1)
        return cls(mode, workers, memory, processes=int(processes))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def _machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _address(mode: str) -> tuple[str, int]:
    host, colon, port = mode.removeprefix(TCP).rstrip("/").rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"environment.isolation={mode!r} is not an address: write tcp://host:port.")
    return host.strip("[]"), int(port)
