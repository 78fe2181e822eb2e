"""One program in a sandbox process: it is handed over, sent lines if it reads any, and its output is read within the
limits.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum

from turnsmith.concurrency.clocks import waiting
from turnsmith.errors import SandboxFailure
from turnsmith.tools.sandbox.availability import check_sandbox
from turnsmith.tools.sandbox.command import SandboxLimits
from turnsmith.tools.sandbox.pool import shared_pool
from turnsmith.tools.sandbox.process import START_LIMIT, SandboxProcess

_KEEPS_INPUT = 1 << 63
"""Added to the length of a program that goes on reading its standard input, see `inside.py`."""
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


@asynccontextmanager
async def sandbox_process(limits: SandboxLimits, *, is_sandboxed: bool = True) -> AsyncGenerator[SandboxProcess]:
    """A fresh process for one program, which is killed afterwards with all that the program left."""
    if is_sandboxed:
        check_sandbox()
    pool = shared_pool(limits, is_sandboxed=is_sandboxed)
    async with waiting(pool.bottleneck):
        process = await pool.acquire()
    try:
        yield process
    finally:
        pool.release(process)


async def run_program(process: SandboxProcess, code: str, limits: SandboxLimits) -> ProgramResult:
    """Run one program in a fresh sandbox process, which the caller must kill afterwards, whatever happens."""
    began = time.perf_counter()
    program, ending = LiveProgram(process, limits), Ending.TIMEOUT
    try:
        await program.wait_until_ready()
        with suppress(TimeoutError):
            async with asyncio.timeout(limits.seconds):
                await program.send(code)
                process.close_stdin()
                ending = await program.wait_until_ended()
    finally:
        program.stop()
    program.read_rest()
    if len(program.output) > limits.output:
        ending, program.exit_code = Ending.OUTPUT_LIMIT, None
    output = program.output[: limits.output].decode("utf-8", "replace")
    return ProgramResult(output, ending, program.exit_code, time.perf_counter() - began)


@asynccontextmanager
async def open_dialogue(code: str, limits: SandboxLimits, most_bytes: int) -> AsyncGenerator[LiveProgram]:
    """Start a program in a sandbox of its own, which is sent lines and answers with lines; end it afterwards.

    Args:
        code: The program.
        limits: Its limits; how long it may take is up to the caller.
        most_bytes: `hear` returns nothing of a longer line.
    """
    async with sandbox_process(limits) as process:
        program = LiveProgram(process, limits, most_bytes)
        try:
            await program.wait_until_ready()
            await program.send(code, keeps_input=True)
            yield program
        finally:
            program.stop()


class LiveProgram:
    """A program that runs in a sandbox process, seen through the process's three pipes."""

    def __init__(self, process: SandboxProcess, limits: SandboxLimits, most_bytes: int = 0) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._limits = limits
        self._most_bytes = most_bytes
        self._news = asyncio.Event()
        self._has_too_many_files = False
        self._file_count = self._loop.call_later(_FILE_COUNT_INTERVAL, self._count_files)
        self.output = bytearray()
        """What it wrote, without the lines that were heard."""
        self.exit_code: int | None = None

    async def wait_until_ready(self) -> None:
        """Wait until the process can take a program. Before that it is not sure to die with this process."""
        if not self._process.is_ready:
            try:
                async with asyncio.timeout(START_LIMIT):
                    await self._wait_for(self._process.status)
            except TimeoutError:
                pass
            self._process.is_ready = _read(self._process.status, 16) == b"r"
        if not self._process.is_ready:
            self.read_rest()
            output = self.output[: self._limits.output].decode("utf-8", "replace").strip()
            reason = output[:500] or f"it was not ready after {START_LIMIT:g} seconds"
            raise SandboxFailure(f"The sandbox for model-written code did not start: {reason}.")

    async def send(self, code: str, *, keeps_input: bool = False) -> None:
        """Hand over the program."""
        program = code.encode("utf-8", "replace")
        # The length first. A reader that waits for the end of the pipe would wait for ever if this process is forked.
        length = len(program) | (_KEEPS_INPUT if keeps_input else 0)
        await self.say(length.to_bytes(8, "little") + program)

    async def say(self, text: bytes) -> None:
        """Write to its standard input. If it reads no more, its output will show it."""
        unsent = memoryview(text)
        while unsent:
            try:
                unsent = unsent[os.write(self._process.stdin, unsent[:_CHUNK]) :]
            except BlockingIOError:
                if not await self._wait_for(self._process.stdin):
                    return
            except BrokenPipeError:
                return

    async def hear(self) -> bytes:
        """The next line that it writes; nothing if there will be none: it has ended, or the line is too long."""
        searched = 0
        while (end := self.output.find(b"\n", searched)) < 0:
            searched = len(self.output)
            if searched > self._most_bytes:
                return b""
            chunk = self._read_output()
            if chunk == b"" or (chunk is None and not await self._wait_for(self._process.output)):
                return b""
        line = bytes(self.output[: end + 1])
        del self.output[: end + 1]
        return line if len(line) <= self._most_bytes else b""

    async def wait_until_ended(self) -> Ending:
        """Read its output until it ends, or goes beyond a limit."""
        pipes = [self._process.status, self._process.output]
        while True:
            if self._read_output() == b"":
                pipes = [self._process.status]
            if len(self.output) > self._limits.output:
                return Ending.OUTPUT_LIMIT
            # The program could write here too; all it achieves is its own end.
            status = _read(self._process.status, 16)
            if status is not None:
                self.exit_code = status[0] if status else None
                return Ending.EXITED if status else Ending.CRASHED
            if not await self._wait_for(*pipes):
                return Ending.FILE_LIMIT

    def read_rest(self) -> None:
        """Read what it wrote before it ended or was killed."""
        while len(self.output) <= self._limits.output and self._read_output():
            pass

    def stop(self) -> None:
        """Count its files no longer."""
        self._file_count.cancel()

    async def _wait_for(self, *pipes: int) -> bool:
        """Wait until one of the pipes can be read, or written to; false: it has created too many files."""
        if not self._has_too_many_files:
            self._news.clear()
            is_input = self._process.stdin in pipes
            add, remove = (
                (self._loop.add_writer, self._loop.remove_writer)
                if is_input
                else (self._loop.add_reader, self._loop.remove_reader)
            )
            for pipe in pipes:
                add(pipe, self._news.set)
            try:
                await self._news.wait()
            finally:
                for pipe in pipes:
                    remove(pipe)
        return not self._has_too_many_files

    def _count_files(self) -> None:
        # The kernel limits the bytes in /tmp but not the number of files, each of which takes a kilobyte of its memory.
        if self._process.is_ready and self._process.count_files() > self._limits.files:
            self._has_too_many_files = True
            self._news.set()
        else:
            self._file_count = self._loop.call_later(_FILE_COUNT_INTERVAL, self._count_files)

    def _read_output(self) -> bytes | None:
        chunk = _read(self._process.output, _CHUNK)
        self.output += chunk or b""
        return chunk


def _read(pipe: int, size: int) -> bytes | None:
    """Read what a pipe holds: None if nothing yet, empty at its end."""
    try:
        return os.read(pipe, size)
    except BlockingIOError:
        return None
