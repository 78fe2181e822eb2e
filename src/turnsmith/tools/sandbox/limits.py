"""Resource limits of a program in the sandbox."""

from __future__ import annotations

import math
from dataclasses import dataclass

from turnsmith.errors import ConfigError

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Resource limits of one program, which is one process with one thread.

    Example:
        >>> SandboxLimits(seconds=2).seconds
        2
        >>> SandboxLimits(memory=1000)
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: SandboxLimits.memory must be from 64 MiB to 1 TiB, in bytes.
    """

    seconds: float = 10.0
    """Wall-clock time. CPU time is limited to one second more than this."""
    memory: int = 512 * MIB
    """Bytes of address space, including about 30 MiB for the interpreter itself."""
    disk: int = 64 * MIB
    """Bytes of all files in its private `/tmp`, which is kept in memory."""
    output: int = 256 * 1024
    """Bytes of output. A program that prints more is killed."""
    files: int = 4096
    """Files and folders in its `/tmp`. A program that creates more is killed, within a tenth of a second."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and 0 < self.seconds <= 86_400):
            raise ConfigError("SandboxLimits.seconds must be more than 0 and at most 86,400 (a day).")
        # Below 64 MiB the interpreter itself does not start.
        for name, least, most in (("memory", 64, 1024 * 1024), ("disk", 1, 1024 * 1024)):
            if not least * MIB <= getattr(self, name) <= most * MIB:
                raise ConfigError(f"SandboxLimits.{name} must be from {least} MiB to 1 TiB, in bytes.")
        if self.files < 16:
            raise ConfigError("SandboxLimits.files must be 16 or more.")
        if not 1 <= self.output <= 64 * MIB:
            raise ConfigError("SandboxLimits.output must be from 1 byte to 64 MiB.")
