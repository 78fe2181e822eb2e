"""Talk with a program in a sandbox: lines go in, and lines come out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from turnsmith.clocks import waiting
from turnsmith.errors import SandboxFailure
from turnsmith.tools.sandbox.availability import check_sandbox
from turnsmith.tools.sandbox.limits import SandboxLimits
from turnsmith.tools.sandbox.pool import shared_pool
from turnsmith.tools.sandbox.process import SandboxProcess
from turnsmith.tools.sandbox.session import START_LIMIT

_KEEPS_INPUT = 1 << 63
"""Added to the length of a program that goes on reading its standard input, see `inside.py`."""
_CHUNK = 65_536
_FILE_COUNT_INTERVAL = 0.1


class Dialogue:
    """A program that reads lines from its standard input and writes lines to its standard output."""

    def __init__(self, process: SandboxProcess, limits: SandboxLimits, most_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._limits = limits
        self._most_bytes = most_bytes
        self._heard = bytearray()
        self._wait: asyncio.Future[None] = self._loop.create_future()
        self._is_over = False
        """Whether it has created too many files, which no limit of the kernel counts."""
        self._file_count = self._loop.call_later(_FILE_COUNT_INTERVAL, self._count_files)

    async def start(self, code: str) -> None:
        """Hand it the program, when it is ready."""
        if not self._process.is_ready:
            try:
                async with asyncio.timeout(START_LIMIT):
                    await self._until(self._loop.add_reader, self._loop.remove_reader, self._process.status)
            except TimeoutError:
                pass
            self._process.is_ready = _read(self._process.status) == b"r"
        if not self._process.is_ready:
            raise SandboxFailure("The sandbox for model-written code did not start.")
        program = code.encode("utf-8", "replace")
        await self.say((len(program) | _KEEPS_INPUT).to_bytes(8, "little") + program)

    async def say(self, text: bytes) -> None:
        """Write to its standard input; whether it is gone, `hear` tells."""
        while text:
            try:
                text = text[os.write(self._process.stdin, text[:_CHUNK]) :]
            except BlockingIOError:
                if not await self._until(self._loop.add_writer, self._loop.remove_writer, self._process.stdin):
                    return
            except BrokenPipeError:
                return

    async def hear(self) -> bytes:
        """The next line that it writes; nothing if there will be none: it has ended, or the line is too long."""
        searched = 0
        while (end := self._heard.find(b"\n", searched)) < 0:
            searched = len(self._heard)
            if searched > self._most_bytes:
                return b""
            chunk = _read(self._process.output)
            if chunk is None:
                is_there = await self._until(self._loop.add_reader, self._loop.remove_reader, self._process.output)
                if not is_there:
                    return b""
            elif not chunk:
                return b""
            else:
                self._heard += chunk
        line = bytes(self._heard[: end + 1])
        del self._heard[: end + 1]
        return line if len(line) <= self._most_bytes else b""

    def stop(self) -> None:
        """No longer count its files."""
        self._file_count.cancel()

    async def _until(self, add: Callable[..., Any], remove: Callable[[int], Any], pipe: int) -> bool:
        """Wait for a pipe; false if there is nothing more to wait for."""
        if not self._is_over:
            self._wait = self._loop.create_future()
            add(pipe, self._go_on)
            try:
                await self._wait
            finally:
                remove(pipe)
        return not self._is_over

    def _go_on(self) -> None:
        if not self._wait.done():
            self._wait.set_result(None)

    def _count_files(self) -> None:
        if self._process.is_ready and self._process.count_files() > self._limits.files:
            self._is_over = True
            self._go_on()
        else:
            self._file_count = self._loop.call_later(_FILE_COUNT_INTERVAL, self._count_files)


def _read(pipe: int) -> bytes | None:
    try:
        return os.read(pipe, _CHUNK)
    except BlockingIOError:
        return None


@asynccontextmanager
async def open_dialogue(code: str, limits: SandboxLimits, most_bytes: int) -> AsyncGenerator[Dialogue]:
    """Start a program in a sandbox of its own, and end it afterwards.

    Args:
        code: The program.
        limits: Its limits; how long it may take is up to the caller.
        most_bytes: A longer line is not heard.
    """
    check_sandbox()
    pool = shared_pool(limits)
    async with waiting(pool.bottleneck):
        process = await pool.acquire()
    dialogue = Dialogue(process, limits, most_bytes)
    try:
        await dialogue.start(code)
        yield dialogue
    finally:
        dialogue.stop()
        pool.release(process)
