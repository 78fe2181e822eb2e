"""An event loop in a thread of its own, so that plain synchronous code can use what is async, and share it.

Engines have one each, which ends with them. What must not depend on the caller's loop, and plain calls of what is
async, use the one of the process.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from turnsmith.errors import EngineFailure
from turnsmith.threads import is_cancelled_from_outside

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

    @property
    def is_here(self) -> bool:
        """Whether the caller already runs in this loop's thread."""
        return threading.current_thread() is self._thread

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
        if self.is_here:
            work.close()
            raise EngineFailure("A synchronous call was made from inside the engine's own event loop: await it there.")
        future = self.start(work)
        try:
            return future.result()
        except CancelledError:
            raise self._cancelled() from None
        except BaseException:
            future.cancel()
            raise

    async def share(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do `work` here and await it from whatever loop the caller is in; cancelling the waiting task cancels it."""
        try:
            return await asyncio.wrap_future(self.start(work))
        except asyncio.CancelledError as error:
            if is_cancelled_from_outside(error):
                raise
            raise self._cancelled() from None

    def close(self, last: Callable[[], Awaitable[None] | None] | None = None) -> None:
        """Cancel what still runs, call `last` on the loop (it may be async), and end the thread. Safe to call twice."""
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

    def _cancelled(self) -> EngineFailure:
        """Why work was cancelled that nobody outside has cancelled."""
        if self._closed:
            return EngineFailure("The engine was closed before it had answered.")
        return EngineFailure("The work was cancelled from inside before it had an answer.")


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _call(function: Callable[[], Awaitable[None] | None]) -> None:
    ending = function()
    if inspect.isawaitable(ending):
        await ending


_shared: tuple[int, LoopThread] | None = None
_lock = threading.Lock()


def shared_loop() -> LoopThread:
    """The loop of this process (a forked child gets its own, because threads do not survive a fork). Never closed."""
    global _shared
    with _lock:
        if _shared is None or _shared[0] != os.getpid():
            _shared = os.getpid(), LoopThread("turnsmith-shared")
        return _shared[1]


def run_blocking(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine from plain code and wait for it, also where an event loop is already running.

    Example:
        >>> run_blocking(asyncio.sleep(0, "done"))
        'done'
    """
    loop = shared_loop()
    if not loop.is_here:
        return loop.run(work)
    # What already runs in that loop calls something else the plain way: waiting there would wait for ever.
    fresh = LoopThread("turnsmith-nested")
    try:
        return fresh.run(work)
    finally:
        fresh.close()
