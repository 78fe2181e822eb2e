"""Keeps requests out of an engine while its weights are being replaced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class InFlightRequests:
    """Counts an engine's requests in flight, and holds back new ones during an update. Belongs to one event loop.

    Example:
        >>> async def example() -> list[str]:
        ...     in_flight, events = InFlightRequests(), []
        ...
        ...     async def request(name: str) -> None:
        ...         async with in_flight.request():
        ...             events.append(f"{name} starts")
        ...             await asyncio.sleep(0.001)
        ...             events.append(f"{name} ends")
        ...
        ...     early = asyncio.create_task(request("early"))
        ...     await asyncio.sleep(0)
        ...     async with in_flight.paused():
        ...         late = asyncio.create_task(request("late"))
        ...         await in_flight.drained()
        ...         events.append("update")
        ...     await asyncio.gather(early, late)
        ...     return events
        >>> asyncio.run(example())
        ['early starts', 'early ends', 'update', 'late starts', 'late ends']
    """

    def __init__(self) -> None:
        self.count = 0
        """Requests that have started and not ended."""
        self._running = asyncio.Event()
        self._running.set()
        self._drained = asyncio.Event()
        self._drained.set()
        self._update_lock = asyncio.Lock()

    @asynccontextmanager
    async def request(self) -> AsyncGenerator[None]:
        """Count one request as in flight; waits first while requests are paused."""
        while not self._running.is_set():
            await self._running.wait()
        self.count += 1
        self._drained.clear()
        try:
            yield
        finally:
            self.count -= 1
            if not self.count:
                self._drained.set()

    @asynccontextmanager
    async def paused(self) -> AsyncGenerator[None]:
        """Hold back new requests. Those in flight carry on: see `drained`."""
        async with self._update_lock:
            self._running.clear()
            try:
                yield
            finally:
                self._running.set()

    async def drained(self) -> None:
        """Wait until no request is in flight."""
        await self._drained.wait()
