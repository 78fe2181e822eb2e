"""The seccomp filter: a BPF program with which the kernel allows or refuses every system call.

Assembled by hand instead of with libseccomp: an allowlist needs four kinds of instructions, and the Python bindings
need a shared library that not every machine has. Whatever is not in `system_calls.txt` is refused.
"""

from __future__ import annotations

import platform
import struct
from functools import cache, lru_cache
from importlib import resources

# Classic BPF, from linux/bpf_common.h: load a word of the call's data, compare, return a verdict.
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
# Verdicts, from linux/seccomp.h.
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38
# Offsets in `struct seccomp_data`. Both machines are little-endian: the low half of an argument comes first.
_NUMBER, _MACHINE, _ARGUMENT_0, _ARGUMENT_1 = 0, 4, 16, 24
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000
"""Numbers from here on belong to the x32 ABI of x86_64, which Python does not use."""
MACHINES = ("x86_64", "aarch64")
"""The supported processor architectures, in the order of the table's columns."""
SOCKETPAIR = (53, 199)
"""Allowed for `AF_UNIX` only."""
_AF_UNIX = 1
IOCTL = (16, 29)
"""Allowed for these requests only: TCGETS, TIOCGWINSZ, FIONREAD, FIONCLEX, FIOCLEX, FIONBIO."""
_REQUESTS = (0x5401, 0x5413, 0x541B, 0x5450, 0x5451, 0x5421)
_NEW = 434
"""From this number on a refused call reports ENOSYS, so that the C library falls back to an older one."""


@cache
def allowed_calls() -> dict[str, tuple[int | None, ...]]:
    """The numbers of each allowed system call, one for each of `MACHINES`; None: that one does not have it.

    Example:
        >>> allowed_calls()["open"]
        (2, None)
    """
    table = resources.files("turnsmith.tools.sandbox").joinpath("system_calls.txt").read_text(encoding="utf-8")
    rows = [line.split() for line in table.splitlines() if line and not line.startswith("#")]
    return {name: tuple(None if one == "-" else int(one) for one in numbers) for name, *numbers in rows}


def is_machine_known() -> bool:
    """Whether there is a filter for this processor architecture."""
    return platform.machine() in MACHINES


@lru_cache(maxsize=4)
def filter_program(machine: str) -> bytes:
    """The filter as bytes, as `bwrap --seccomp` reads it.

    Example:
        >>> len(filter_program("x86_64")) % 8  # instructions are 8 bytes long
        0
    """
    column = MACHINES.index(machine)
    numbers = [number for row in allowed_calls().values() if (number := row[column]) is not None]
    code: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _MACHINE),
        (_EQUAL, 1, 0, _AUDIT[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        code += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    for number in numbers:
        code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    code += _with_argument(SOCKETPAIR[column], _ARGUMENT_0, (_AF_UNIX,))
    code += _with_argument(IOCTL[column], _ARGUMENT_1, _REQUESTS)
    code += [(_AT_LEAST, 0, 1, _NEW), (_RETURN, 0, 0, _ERROR | _ENOSYS), (_RETURN, 0, 0, _ERROR | _EPERM)]
    return b"".join(struct.pack("=HBBI", *each) for each in code)


def _with_argument(number: int, offset: int, values: tuple[int, ...]) -> list[tuple[int, int, int, int]]:
    """Allow one call for some values of one argument; refuse it for all others."""
    body = [(_LOAD, 0, 0, offset)]
    for value in values:
        body += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW)]
    body += [(_RETURN, 0, 0, _ERROR | _EPERM)]
    return [(_EQUAL, 0, len(body), number), *body]
