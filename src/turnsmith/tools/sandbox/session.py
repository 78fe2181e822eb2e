"""Hand a program to a sandbox process, and read its output within the limits."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from enum import StrEnum

from turnsmith.errors import SandboxFailure
from turnsmith.tools.sandbox.limits import SandboxLimits
from turnsmith.tools.sandbox.process import SandboxProcess

START_LIMIT = 60.0
"""Seconds that a sandbox may take to get ready: far more than on a machine that is not overloaded."""
_CHUNK = 65_536
_FILE_COUNT_INTERVAL = 0.1


class Ending(StrEnum):
    """How a program ended."""

    EXITED = "exited"
    """By itself; the exit code says whether with an error."""
    TIMEOUT = "timeout"
    """Killed because its time was over."""
    OUTPUT_LIMIT = "output_limit"
    """Killed because it printed too much."""
    FILE_LIMIT = "file_limit"
    """Killed because it created too many files."""
    CRASHED = "crashed"
    """Killed by the kernel or by itself: out of CPU time, out of memory outside of Python's control, a segfault."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """Output and exit code of one program.

    Example:
        >>> ProgramResult("2\\n", Ending.EXITED, 0, 0.001).is_ok
        True
    """

    output: str
    """Standard output and standard error, in the order they were written."""
    ending: Ending
    exit_code: int | None
    """None unless it exited by itself."""
    seconds: float

    @property
    def is_ok(self) -> bool:
        """Whether it ran to its end without an error."""
        return self.exit_code == 0


async def run_program(process: SandboxProcess, code: str, limits: SandboxLimits) -> ProgramResult:
    """Run one program in a fresh sandbox process, which the caller must kill afterwards, whatever happens."""
    began = time.perf_counter()
    program = code.encode("utf-8", "replace")
    # The length first. A reader that waits for the end of the pipe would wait for ever if this process is forked.
    message = len(program).to_bytes(8, "little") + program
    session = _Session(asyncio.get_running_loop(), process, message, limits)
    try:
        ending = await session.start()
    finally:
        session.stop()
    session.read_rest()
    output = b"".join(session.chunks)[: limits.output].decode("utf-8", "replace")
    if not process.is_ready:
        reason = output.strip()[:500] or f"it was not ready after {START_LIMIT:g} seconds"
        raise SandboxFailure(f"The sandbox for model-written code did not start: {reason}.")
    if session.size > limits.output:
        ending, session.exit_code = Ending.OUTPUT_LIMIT, None
    return ProgramResult(output, ending, session.exit_code, time.perf_counter() - began)


class _Session:
    """The event loop's callbacks for the three pipes of one process."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, process: SandboxProcess, message: bytes, limits: SandboxLimits
    ) -> None:
        self._loop = loop
        self._unsent = memoryview(message)
        self._timeout = loop.call_later(START_LIMIT, self._finish, Ending.TIMEOUT)
        self._file_count = loop.call_later(_FILE_COUNT_INTERVAL, self._count_files)
        self._process = process
        self._limits = limits
        self._ending: asyncio.Future[Ending] = loop.create_future()
        self.chunks: list[bytes] = []
        self.size = 0
        self.exit_code: int | None = None

    def start(self) -> asyncio.Future[Ending]:
        self._loop.add_reader(self._process.status, self._on_status)
        self._loop.add_reader(self._process.output, self._on_output)
        self._on_status()  # a process from the pool has already reported that it is ready
        return self._ending

    def stop(self) -> None:
        self._timeout.cancel()
        self._file_count.cancel()
        self._loop.remove_reader(self._process.status)
        self._loop.remove_reader(self._process.output)
        if self._process.stdin >= 0:
            self._loop.remove_writer(self._process.stdin)

    def read_rest(self) -> None:
        """Read what the program printed before it ended or was killed."""
        while self.size <= self._limits.output and self._read_output():
            pass

    def _finish(self, ending: Ending) -> None:
        if not self._ending.done():
            self._ending.set_result(ending)

    def _count_files(self) -> None:
        # The kernel limits the bytes in /tmp but not the number of files, each of which takes a kilobyte of its memory.
        if self._process.is_ready and self._process.count_files() > self._limits.files:
            self._finish(Ending.FILE_LIMIT)
        else:
            self._file_count = self._loop.call_later(_FILE_COUNT_INTERVAL, self._count_files)

    def _send(self) -> None:
        stdin = self._process.stdin
        try:
            self._unsent = self._unsent[os.write(stdin, self._unsent[:_CHUNK]) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:  # the process is gone, which the other pipes will show
            self._unsent = self._unsent[:0]
        if self._unsent:
            self._loop.add_writer(stdin, self._send)
        else:
            self._loop.remove_writer(stdin)
            self._process.close_stdin()

    def _on_status(self) -> None:
        status = _read(self._process.status, 16)
        if status is None:
            return
        if not self._process.is_ready and status == b"r":
            # Only from now on is the process sure to die with this one, so only now it gets the program.
            self._process.is_ready = True
            self._timeout.cancel()
            self._timeout = self._loop.call_later(self._limits.seconds, self._finish, Ending.TIMEOUT)
            self._send()
            return
        # The program could write here too; all it achieves is its own end.
        self.exit_code = status[0] if status else None
        self._finish(Ending.EXITED if status else Ending.CRASHED)

    def _on_output(self) -> None:
        if self._read_output() == b"":
            self._loop.remove_reader(self._process.output)
        elif self.size > self._limits.output:
            self._finish(Ending.OUTPUT_LIMIT)

    def _read_output(self) -> bytes | None:
        chunk = _read(self._process.output, _CHUNK)
        if chunk:
            self.chunks.append(chunk)
            self.size += len(chunk)
        return chunk


def _read(pipe: int, size: int) -> bytes | None:
    """Read what a pipe holds: None if nothing yet, empty at its end."""
    try:
        return os.read(pipe, size)
    except BlockingIOError:
        return None
