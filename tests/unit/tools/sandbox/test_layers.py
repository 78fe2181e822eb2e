"""The layers of the sandbox one by one: each holds where another is taken away."""

from __future__ import annotations

import os
import re
import struct
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.tools.sandbox.programs import FORBIDDEN, HEAD

from turnsmith.errors import SandboxFailure
from turnsmith.tools.sandbox import ProgramResult, SandboxLimits
from turnsmith.tools.sandbox import command as command_module
from turnsmith.tools.sandbox.command import Command, command_for
from turnsmith.tools.sandbox.process import SandboxProcess
from turnsmith.tools.sandbox.seccomp import IOCTL, MACHINES, SOCKETPAIR, allowed_calls, filter_program
from turnsmith.tools.sandbox.session import run_program

LIMITS = SandboxLimits()
ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


class Unfiltered(Command):
    """The sandbox without its filter of system calls."""

    def line(self, status: int, seccomp: int) -> list[str]:
        words = super().line(status, seccomp)
        at = words.index("--seccomp")
        return words[:at] + words[at + 2 :]


async def run(command: Command, program: str) -> ProgramResult:
    process = SandboxProcess.start(command)
    try:
        return await run_program(process, HEAD + program, LIMITS)
    finally:
        process.kill()
        process.reap()


def unfiltered() -> Unfiltered:
    command = command_for(LIMITS)
    return Unfiltered(command.before, command.python, command.limits)


WITHOUT_FILTER = {
    "only an own network": "import socket; print([name for _, name in socket.if_nameindex()])\n"
    "refused(lambda: socket.create_connection(('192.0.2.1', 80), 1), OSError)",
    "no user namespaces": "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
    "print('held' if libc.unshare(0x10000000) == -1 else 'ESCAPED', ctypes.get_errno())",
    "no mounts": "import ctypes\nlibc = ctypes.CDLL(None)\n"
    "print('held' if libc.mount(b'x', b'/tmp', b'tmpfs', 0, 0) else 'ESCAPED')",
    "no capabilities": "import ctypes\ndata = (ctypes.c_uint32 * 6)()\nhead = (ctypes.c_uint32 * 2)(0x20080522, 0)\n"
    "print('held' if ctypes.CDLL(None).capget(head, data) == 0 and not any(data) else 'ESCAPED', list(data))",
    "no new privileges": "import ctypes; print('held' if ctypes.CDLL(None).prctl(39, 0, 0, 0, 0) == 1 else 'ESCAPED')",
    "other processes out of sight": "refused(lambda: os.kill(%PARENT%, 0), ProcessLookupError)",
    "other users": "refused(lambda: os.setuid(0), OSError); refused(lambda: os.chown('main.py', 0, 0), OSError)",
    "the clock": "import time; refused(lambda: time.clock_settime(time.CLOCK_REALTIME, 0), OSError)",
    "device nodes": "refused(lambda: os.mknod('disk', 0o60666, os.makedev(8, 0)), OSError)",
    "an own session": "print('held' if os.getsid(0) <= 2 else 'ESCAPED')",
}


@pytest.mark.parametrize("name", WITHOUT_FILTER)
async def test_namespaces_hold_without_the_filter(name: str) -> None:
    result = await run(unfiltered(), WITHOUT_FILTER[name].replace("%PARENT%", str(os.getpid())))
    assert result.exit_code == 0, result.output
    assert "held" in result.output
    assert "ESCAPED" not in result.output


class Cut(Command):
    """The sandbox with a filter of which a part is lost."""

    def line(self, status: int, seccomp: int) -> list[str]:
        os.read(seccomp, 4)
        return super().line(status, seccomp)


class Lost(Command):
    """The sandbox with a filter that is not there."""

    def line(self, status: int, seccomp: int) -> list[str]:
        return super().line(status, 999)


@pytest.mark.parametrize("kind", [Cut, Lost])
async def test_filter_that_does_not_load_runs_nothing(kind: type[Command]) -> None:
    command = command_for(LIMITS)
    with pytest.raises(SandboxFailure, match=r"did not start: bwrap: .*seccomp"):
        await run(kind(command.before, command.python, command.limits), "print('ESCAPED')")


def test_command_does_not_ask_sysconfig_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11 hands an unfinished table to a thread that asks while another one makes it."""
    monkeypatch.setattr(sysconfig, "_CONFIG_VARS", {})
    asked_anew = SandboxLimits(seconds=17.25)
    command_module._libraries.cache_clear()
    command = command_for(asked_anew)
    assert command.before == command_for(LIMITS).before
    assert all(isinstance(word, str) for word in command.line(3, 4))


async def test_limits_that_cannot_be_set_run_nothing() -> None:
    command = command_for(LIMITS)
    with pytest.raises(SandboxFailure, match="did not start"):
        await run(replace(command, limits=("x", "y", "z")), "print('ESCAPED')")


def answer(code: list[tuple[int, int, int, int]], machine: int, number: int, *arguments: int) -> int:
    """What the kernel would make of it: the four instructions that the filter uses, step by step."""
    data = struct.pack("<IIQ6Q", number, machine, 0, *arguments, *[0] * (6 - len(arguments)))
    at, accumulator = 0, 0
    while True:
        kind, then, otherwise, value = code[at]
        at += 1
        if kind == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif kind == 0x15:
            at += then if accumulator == value else otherwise
        elif kind == 0x35:
            at += then if accumulator >= value else otherwise
        else:
            assert kind == 0x06
            return value


@pytest.mark.parametrize("machine", MACHINES)
def test_filter_allows_what_is_listed_and_nothing_else(machine: str) -> None:
    column, audit = MACHINES.index(machine), AUDIT[machine]
    program = list(struct.iter_unpack("=HBBI", filter_program(machine)))
    listed = {both[column] for both in allowed_calls().values()} - {None}
    special = {SOCKETPAIR[column], IOCTL[column]}
    for number in range(480):
        expected = ALLOW if number in listed else EPERM if number < 434 else ENOSYS
        assert answer(program, audit, number) == (EPERM if number in special else expected)
    assert answer(program, audit, SOCKETPAIR[column], 1) == ALLOW
    assert answer(program, audit, SOCKETPAIR[column], 2) == EPERM
    assert answer(program, audit, IOCTL[column], 0, 0x5401) == ALLOW
    assert answer(program, audit, IOCTL[column], 0, 0x5412) == EPERM  # types into a terminal
    assert answer(program, 0x40000003, 1) == KILL  # 32 bit
    assert answer(program, audit, 2**31) in (KILL, ENOSYS)
    assert not listed & {both[column] for both in FORBIDDEN.values()}


HEADERS = {"x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "/usr/include/asm-generic/unistd.h"}


@pytest.mark.parametrize("machine", MACHINES)
def test_numbers_are_those_of_the_kernel_s_headers(machine: str) -> None:
    header = Path(HEADERS[machine])
    if not header.is_file():
        pytest.skip("the kernel's headers are not installed")
    column = MACHINES.index(machine)
    known = {
        name: int(number)
        for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)$", header.read_text(), re.M)
    }
    known |= {"newfstatat": known["fstatat"]} if "newfstatat" not in known else {}
    for name, both in {**allowed_calls(), **FORBIDDEN, "socketpair": SOCKETPAIR, "ioctl": IOCTL}.items():
        assert known.get(name, -1) == (-1 if both[column] is None else both[column]), name
