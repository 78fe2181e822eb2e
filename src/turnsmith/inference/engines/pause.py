"""A gate that many requests pass through at once, until somebody who needs the engine alone closes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class RequestGate:
    """Requests inside, or one change of the engine, never both. Belongs to one event loop.

    Example:
        >>> async def play() -> list[str]:
        ...     gate, seen = RequestGate(), []
        ...
        ...     async def request(name: str) -> None:
        ...         async with gate.inside():
        ...             seen.append(f"{name} in")
        ...             await asyncio.sleep(0.001)
        ...             seen.append(f"{name} out")
        ...
        ...     early = asyncio.create_task(request("early"))
        ...     await asyncio.sleep(0)
        ...     async with gate.closed():
        ...         late = asyncio.create_task(request("late"))
        ...         await gate.emptied()
        ...         seen.append("change")
        ...     await asyncio.gather(early, late)
        ...     return seen
        >>> asyncio.run(play())
        ['early in', 'early out', 'change', 'late in', 'late out']
    """

    def __init__(self) -> None:
        self._inside = 0
        self._open = asyncio.Event()
        self._open.set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._one = asyncio.Lock()

    @asynccontextmanager
    async def inside(self) -> AsyncGenerator[None]:
        """For a request: waits while the gate is closed."""
        while not self._open.is_set():
            await self._open.wait()
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    @asynccontextmanager
    async def closed(self) -> AsyncGenerator[None]:
        """For a change: lets nothing in. What is inside stays there until it is done: see `emptied`."""
        async with self._one:
            self._open.clear()
            try:
                yield
            finally:
                self._open.set()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is inside."""
        return self._inside == 0

    async def emptied(self) -> None:
        """Wait until nothing is inside."""
        await self._empty.wait()
