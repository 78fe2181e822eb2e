"""An event loop in a thread of its own, so that plain synchronous code can use what is async, and share it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from turnwise.errors import EngineFailure

Result = TypeVar("Result")


class LoopThread:
    """Runs coroutines for callers on any thread, also for those that have an event loop of their own (notebooks do).

    Example:
        >>> import asyncio
        >>> loop = LoopThread("example")
        >>> loop.run(asyncio.sleep(0, "done"))
        'done'
        >>> loop.close()
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._closing = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Begin `work`; cancelling the future cancels it."""
        # The lock keeps work from landing in a loop that has stopped, where nobody would ever run it.
        with self._closing:
            if self._closed:
                work.close()
                raise EngineFailure("The engine is closed.")
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do `work` and wait for it. An interrupt (Ctrl-C) of the waiting thread cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise EngineFailure("A synchronous call was made from inside the engine's own event loop: await it there.")
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            if future.cancelled() and self._closed:
                raise EngineFailure("The engine was closed before it had answered.") from None
            future.cancel()
            raise

    def close(self, last: Callable[[], None] | None = None) -> None:
        """Cancel what still runs, call `last` on the loop, and end the thread. Safe to call twice."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            ending = asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop)
        ending.result(timeout=60)
        if last is not None:
            asyncio.run_coroutine_threadsafe(_call(last), self._loop).result(timeout=60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _call(function: Callable[[], None]) -> None:
    function()
