"""Giving a program to a cell, and reading what comes out of it within its limits."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from enum import StrEnum

from turnsmith.errors import SandboxFailure
from turnsmith.tools.sandbox.limits import SandboxLimits
from turnsmith.tools.sandbox.process import Cell

START_LIMIT = 60.0
"""Seconds that a cell may take to get ready: far longer than it takes on a machine that is not overloaded."""
_PIECE = 65_536
_LOOK = 0.1
"""Seconds between two looks at how many files a program has made."""


class Ending(StrEnum):
    """How a program ended."""

    EXITED = "exited"
    """By itself; the exit code says whether it was content."""
    LATE = "late"
    """Stopped, because its time was over."""
    FLOODED = "flooded"
    """Stopped, because it printed too much."""
    CROWDED = "crowded"
    """Stopped, because it made too many files."""
    DIED = "died"
    """Killed or crashed: out of memory in a place that cannot say so, out of computing time, a fault of its own."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """What came of one program.

    Example:
        >>> ProgramResult("2\\n", Ending.EXITED, 0, 0.001).is_ok
        True
    """

    output: str
    """All that it printed, to standard output and standard error, in order."""
    ending: Ending
    exit_code: int | None
    """None unless it exited by itself."""
    seconds: float

    @property
    def is_ok(self) -> bool:
        """Whether it ran to its end without an error."""
        return self.exit_code == 0


async def run_program(cell: Cell, code: str, limits: SandboxLimits) -> ProgramResult:
    """Run one program in a fresh cell. The caller kills the cell afterwards, whatever happens."""
    began = time.perf_counter()
    program = code.encode("utf-8", "replace")
    # The length first. Waiting for the pipe's end instead would wait for ever if this process was forked meanwhile.
    session = _Session(asyncio.get_running_loop(), cell, len(program).to_bytes(8, "little") + program, limits)
    try:
        ending = await session.begin()
    finally:
        session.stop()
    session.read_rest()
    output = b"".join(session.pieces)[: limits.output].decode("utf-8", "replace")
    if not cell.is_ready:
        said = output.strip()[:500] or f"it was not ready after {START_LIMIT:g} seconds"
        raise SandboxFailure(f"The sandbox for model-written code did not start: {said}.")
    if session.size > limits.output:
        ending, session.exit_code = Ending.FLOODED, None
    return ProgramResult(output, ending, session.exit_code, time.perf_counter() - began)


class _Session:
    """Callbacks of one event loop for the three pipes of one cell."""

    __slots__ = ("_look", "_loop", "_rest", "_timer", "cell", "ended", "exit_code", "limits", "pieces", "size")

    def __init__(self, loop: asyncio.AbstractEventLoop, cell: Cell, code: bytes, limits: SandboxLimits) -> None:
        self._loop = loop
        self._rest = memoryview(code)
        self._timer = loop.call_later(START_LIMIT, self._finish, Ending.LATE)
        self._look = loop.call_later(_LOOK, self._count_files)
        self.cell = cell
        self.limits = limits
        self.ended: asyncio.Future[Ending] = loop.create_future()
        self.pieces: list[bytes] = []
        self.size = 0
        self.exit_code: int | None = None

    def begin(self) -> asyncio.Future[Ending]:
        self._loop.add_reader(self.cell.status, self._on_status)
        self._loop.add_reader(self.cell.output, self._on_output)
        self._on_status()  # a warm one has already said that it is ready
        return self.ended

    def stop(self) -> None:
        self._timer.cancel()
        self._look.cancel()
        self._loop.remove_reader(self.cell.status)
        self._loop.remove_reader(self.cell.output)
        if self.cell.code >= 0:
            self._loop.remove_writer(self.cell.code)

    def read_rest(self) -> None:
        """What the program printed before it said that it had ended, or was stopped."""
        while self.size <= self.limits.output and self._read_output():
            pass

    def _finish(self, ending: Ending) -> None:
        if not self.ended.done():
            self.ended.set_result(ending)

    def _count_files(self) -> None:
        # The kernel bounds the bytes in /tmp, but not the files, each of which takes a kilobyte of its memory.
        if self.cell.is_ready and self.cell.count_files() > self.limits.files:
            self._finish(Ending.CROWDED)
        else:
            self._look = self._loop.call_later(_LOOK, self._count_files)

    def _send(self) -> None:
        end = self.cell.code
        try:
            self._rest = self._rest[os.write(end, self._rest[:_PIECE]) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:  # it is gone, which the other pipes will say
            self._rest = self._rest[:0]
        if self._rest:
            self._loop.add_writer(end, self._send)
        else:
            self._loop.remove_writer(end)
            self.cell.close_code()

    def _on_status(self) -> None:
        said = _read(self.cell.status, 16)
        if said is None:
            return
        if not self.cell.is_ready and said == b"r":
            # Only now is it sure to die with us, so only now it gets the program.
            self.cell.is_ready = True
            self._timer.cancel()
            self._timer = self._loop.call_later(self.limits.seconds, self._finish, Ending.LATE)
            self._send()
            return
        # The program could write here too. All it can bring about is its own end.
        self.exit_code = said[0] if said else None
        self._finish(Ending.EXITED if said else Ending.DIED)

    def _on_output(self) -> None:
        if self._read_output() == b"":
            self._loop.remove_reader(self.cell.output)
        elif self.size > self.limits.output:
            self._finish(Ending.FLOODED)

    def _read_output(self) -> bytes | None:
        piece = _read(self.cell.output, _PIECE)
        if piece:
            self.pieces.append(piece)
            self.size += len(piece)
        return piece


def _read(end: int, size: int) -> bytes | None:
    """What waits in a pipe: nothing yet (None), or its end (empty)."""
    try:
        return os.read(end, size)
    except BlockingIOError:
        return None
