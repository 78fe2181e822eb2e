"""Runs an agent's program to its end, and ends all that it started. Knows nothing of models, tasks and rewards."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

from turnsmith.supervisor import supervised

KEPT_BYTES = 2**16
"""So much of the end of what a program writes is kept."""
_MOST_READS = 64
"""When the program has ended: what it left in the pipe, but not what somebody else goes on writing."""
_MARK = "TURNSMITH_PROGRAM"
"""The variable by which the processes of one program are known."""
_MOST_SWEEPS = 50
_END_SECONDS = 35.0
"""For the supervisor to end everything; it needs this long only for processes that cannot be killed."""


@dataclass(frozen=True, slots=True)
class EndedProgram:
    """How a program ended, and the end of what it wrote."""

    status: int
    output: str
    errors: str


async def run_to_its_end(
    command: list[str], variables: dict[str, str], folder: str | None, *, keeps_output: bool
) -> EndedProgram:
    """Run a program; if this is cancelled, it is killed. Either way nothing that it started is left.

    On Linux a supervisor of its own finds whatever it started. Elsewhere that is its process group, which a process
    can leave.

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
            # Pipes of our own: asyncio would wait until everybody has closed them, not for the program.
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
    """Kill it, and all that it started, if that has not been done."""
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
    """The program has killed its supervisor: kill what still has the variable that it was started with."""
    for _ in range(_MOST_SWEEPS):
        found = False
        for process in Path("/proc").iterdir():
            with suppress(OSError):  # it has just ended, or is another user's
                if process.name.isdecimal() and mark in (process / "environ").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)
                    found = True
        if not found:
            return


class _Tail:
    """A pipe that is read as soon as something is written to it, of which the end is kept."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._loop = asyncio.get_running_loop()
        self._kept = b""

    def start(self) -> None:
        """The program has its end of the pipe."""
        os.close(self.writer)
        self.writer = -1
        self._loop.add_reader(self._reader, self._read)

    def end(self) -> str:
        """What was kept, once the program has ended."""
        for _ in range(_MOST_READS):
            if not self._read():
                break
        return self._kept.decode("utf-8", "replace").strip()

    def close(self) -> None:
        """Give up both ends of the pipe."""
        self._loop.remove_reader(self._reader)
        os.close(self._reader)
        if self.writer >= 0:
            os.close(self.writer)

    def _read(self) -> bool:
        """Read a part; gives whether there may be more."""
        try:
            part = os.read(self._reader, KEPT_BYTES)
        except BlockingIOError:
            return False
        self._kept = (self._kept + part)[-KEPT_BYTES:]
        if not part:
            self._loop.remove_reader(self._reader)
        return bool(part)
