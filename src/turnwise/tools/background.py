"""One event loop in a thread of its own, for what must not depend on the caller's loop.

Plain code calls async tools through it, and connections to MCP servers live in it, so that a registry works from any
loop and from none.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")


class BackgroundLoop:
    """An event loop that runs for ever in a daemon thread.

    Example:
        >>> async def double(x):
        ...     return 2 * x
        >>> BackgroundLoop("example").submit(double(21)).result()
        42
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

    @property
    def is_here(self) -> bool:
        """Whether the caller already runs in this loop's thread."""
        return threading.current_thread() is self._thread

    def submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Start the coroutine; the future is for other threads to wait on."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Wait for the coroutine from whatever loop the caller is in. Cancelling the wait cancels the work."""
        return await work if self.is_here else await asyncio.wrap_future(self.submit(work))

    def stop(self) -> None:
        """End the loop and its thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)


_shared: tuple[int, BackgroundLoop] | None = None
_lock = threading.Lock()


def shared_loop() -> BackgroundLoop:
    """The loop of this process (a forked child gets its own, because threads do not survive a fork)."""
    global _shared
    with _lock:
        if _shared is None or _shared[0] != os.getpid():
            _shared = os.getpid(), BackgroundLoop("turnwise-tools")
        return _shared[1]


def run_blocking(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine from plain code and wait for it, also where an event loop is already running.

    Example:
        >>> run_blocking(asyncio.sleep(0, "done"))
        'done'
    """
    loop = shared_loop()
    if not loop.is_here:
        return loop.submit(work).result()
    # A tool of that very loop calls another one the plain way: waiting here would wait for ever.
    fresh = BackgroundLoop("turnwise-tools-nested")
    try:
        return fresh.submit(work).result()
    finally:
        fresh.stop()
