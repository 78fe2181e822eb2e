"""How much a program in the sandbox may use."""

from __future__ import annotations

import math
from dataclasses import dataclass

from turnsmith.errors import ConfigError

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """What one program may use. It is one process with one thread, so these hold for all of it.

    Example:
        >>> SandboxLimits(seconds=2).seconds
        2
        >>> SandboxLimits(memory=1000)
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: A sandbox's memory must be from 64 MiB to 1 TiB.
    """

    seconds: float = 10.0
    """Time on the clock. A program may also not compute for longer than this and a second."""
    memory: int = 512 * MIB
    """Bytes of address space, the interpreter's own 30 MiB or so included."""
    disk: int = 64 * MIB
    """Bytes of all files in its private `/tmp` together (they are kept in memory), and of each one."""
    output: int = 256 * 1024
    """Bytes that it may print. One that prints more is stopped."""
    files: int = 4096
    """Files and folders in its `/tmp`. One that makes more is stopped, a tenth of a second later at the latest."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and 0 < self.seconds <= 86_400):
            raise ConfigError("A sandbox's seconds must be more than zero and at most a day.")
        # Below 64 MiB not even the interpreter starts.
        for name, least, most in (("memory", 64, 1024 * 1024), ("disk", 1, 1024 * 1024)):
            if not least * MIB <= getattr(self, name) <= most * MIB:
                raise ConfigError(f"A sandbox's {name} must be from {least} MiB to 1 TiB.")
        if self.files < 16:
            raise ConfigError("A sandbox's files must be 16 or more.")
        if not 1 <= self.output <= 64 * MIB:
            raise ConfigError("A sandbox's output must be from 1 byte to 64 MiB.")
