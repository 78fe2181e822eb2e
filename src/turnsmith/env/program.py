"""Runs an agent's program, and kills every process that it started. Knows nothing about models, tasks and rewards."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

from turnsmith.concurrency.supervisor import supervised

KEPT_BYTES = 2**16
"""How much of the end of a program's output is kept."""
_MOST_READS = 64
"""How often the pipe is read after the program has ended, in case another process keeps writing to it."""
_MARK = "TURNSMITH_PROGRAM"
"""The environment variable that identifies the processes of one program."""
_MOST_SWEEPS = 50
_END_SECONDS = 35.0
"""How long the supervisor may take to end; only processes that cannot be killed take it this long."""


@dataclass(frozen=True, slots=True)
class EndedProgram:
    """A program's exit status, and the end of its output."""

    status: int
    output: str
    errors: str


async def run_to_its_end(
    command: list[str], variables: dict[str, str], folder: str | None, *, keeps_output: bool
) -> EndedProgram:
    """Run a program; cancelling this kills it. In both cases no process that it started is left.

    On Linux a supervisor finds all these processes. Elsewhere its process group is killed, which a process can leave.

    Raises:
        OSError: It could not be started.
        ValueError: Its command has a null character.
    """
    mark = secrets.token_hex(8)
    with ExitStack() as pipes:
        output = pipes.enter_context(closing(_Tail())) if keeps_output else None
        errors = pipes.enter_context(closing(_Tail()))
        process = await asyncio.create_subprocess_exec(
            *supervised(command),
            env={**variables, _MARK: mark},
            cwd=folder,
            stdin=asyncio.subprocess.DEVNULL,
            # Our own pipes: with its own, asyncio would wait until all processes have closed them.
            stdout=output.writer if output else asyncio.subprocess.DEVNULL,
            stderr=errors.writer,
            start_new_session=True,
        )
        for tail in filter(None, (output, errors)):
            tail.start()
        try:
            status = await process.wait()
        finally:
            await _end(process, mark)
        return EndedProgram(status, output.end() if output else "", errors.end())


async def _end(process: asyncio.subprocess.Process, mark: str) -> None:
    """Kill the program and all processes that it started, if they still run."""
    if sys.platform != "linux":
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    elif process.returncode is None:
        with suppress(ProcessLookupError):
            process.terminate()
            process.send_signal(signal.SIGCONT)  # the program may have stopped its supervisor
    try:
        async with asyncio.timeout(_END_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
    if sys.platform == "linux" and (process.returncode or 0) < 0:
        _kill_marked(f"{_MARK}={mark}".encode())


def _kill_marked(mark: bytes) -> None:
    """Kill all processes with the program's variable, because the program has killed its supervisor."""
    for _ in range(_MOST_SWEEPS):
        has_killed = False
        for process in Path("/proc").iterdir():
            with suppress(OSError):  # the process has ended, or is another user's
                if process.name.isdecimal() and mark in (process / "environ").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)
                    has_killed = True
        if not has_killed:
            return


class _Tail:
    """A pipe that is read while it is written to; only the end of its content is kept."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._loop = asyncio.get_running_loop()
        self._kept = b""

    def start(self) -> None:
        """Start reading, once the program has its end of the pipe."""
        os.close(self.writer)
        self.writer = -1
        self._loop.add_reader(self._reader, self._read)

    def end(self) -> str:
        """The end of the output, once the program has ended."""
        for _ in range(_MOST_READS):
            if not self._read():
                break
        return self._kept.decode("utf-8", "replace").strip()

    def close(self) -> None:
        """Close both ends of the pipe."""
        self._loop.remove_reader(self._reader)
        os.close(self._reader)
        if self.writer >= 0:
            os.close(self.writer)

    def _read(self) -> bool:
        """Read a part; returns whether there may be more."""
        try:
            part = os.read(self._reader, KEPT_BYTES)
        except BlockingIOError:
            return False
        self._kept = (self._kept + part)[-KEPT_BYTES:]
        if not part:
            self._loop.remove_reader(self._reader)
        return bool(part)
