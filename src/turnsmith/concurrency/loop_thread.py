"""An event loop in its own thread, through which synchronous code and other event loops run coroutines.

Each engine has its own loop, which is closed with it. Everything else uses the one that the process shares.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from turnsmith.concurrency.threads import avoid_uvloop, is_cancelled_from_outside
from turnsmith.errors import EngineFailure

Result = TypeVar("Result")


class LoopThread:
    """Runs coroutines for callers on any thread, including those with a running event loop (such as notebooks).

    Example:
        >>> import asyncio
        >>> loop = LoopThread("example")
        >>> loop.run(asyncio.sleep(0, "done"))
        'done'
        >>> loop.close()
    """

    def __init__(self, name: str) -> None:
        avoid_uvloop()
        self._loop = asyncio.new_event_loop()
        self._close_lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this loop's thread."""
        return threading.current_thread() is self._thread

    def start(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Start a coroutine; cancelling the returned future cancels it."""
        # The lock keeps a coroutine from being submitted to a stopped loop, where it would never run.
        with self._close_lock:
            if self._closed:
                work.close()
                raise EngineFailure("The engine is closed.")
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine and block until it is done. A KeyboardInterrupt in the waiting thread cancels it."""
        if self.is_current:
            work.close()
            raise EngineFailure(
                "A blocking call was made on the engine's own event loop: await the async method there."
            )
        future = self.start(work)
        try:
            return future.result()
        except CancelledError:
            raise self._cancellation() from None
        except BaseException:
            future.cancel()
            raise

    async def run_async(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in this loop and await it from the caller's loop; cancelling the caller cancels it."""
        try:
            return await asyncio.wrap_future(self.start(work))
        except asyncio.CancelledError as error:
            if is_cancelled_from_outside(error):
                raise
            raise self._cancellation() from None

    def close(self, cleanup: Callable[[], Awaitable[None] | None] | None = None) -> None:
        """Cancel all tasks, call `cleanup` in the loop's thread (it may be async), and end the thread. Safe to call
        twice.
        """
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
            cancelling = asyncio.run_coroutine_threadsafe(_cancel_other_tasks(), self._loop)
        cancelling.result(timeout=60)
        if cleanup is not None:
            asyncio.run_coroutine_threadsafe(_call(cleanup), self._loop).result(timeout=60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()

    def _cancellation(self) -> EngineFailure:
        """The error for a coroutine that was cancelled, but not by its caller."""
        if self._closed:
            return EngineFailure("The engine was closed before the call finished.")
        return EngineFailure("The call cancelled itself before it finished.")


async def _cancel_other_tasks() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _call(function: Callable[[], Awaitable[None] | None]) -> None:
    result = function()
    if inspect.isawaitable(result):
        await result


_shared: tuple[int, LoopThread] | None = None
_shared_lock = threading.Lock()


def shared_loop() -> LoopThread:
    """The loop that this process shares; never closed. A forked child gets a new one, since threads end at a fork."""
    global _shared
    with _shared_lock:
        if _shared is None or _shared[0] != os.getpid():
            _shared = os.getpid(), LoopThread("turnsmith-shared")
        return _shared[1]


def run_blocking(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine from synchronous code and wait for it, even if the caller has a running event loop.

    Example:
        >>> run_blocking(asyncio.sleep(0, "done"))
        'done'
    """
    loop = shared_loop()
    if not loop.is_current:
        return loop.run(work)
    # Called from a coroutine on the shared loop: waiting there would deadlock.
    nested = LoopThread("turnsmith-nested")
    try:
        return nested.run(work)
    finally:
        nested.close()


_of_thread = threading.local()


def run_here(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in the caller's own thread, always on the same event loop of it, so that what one call opened the
    next can use. If another event loop runs in that thread, as `run_blocking` does.

    Example:
        >>> async def where():
        ...     return threading.get_ident()
        >>> run_here(where()) == threading.get_ident()
        True
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        return run_blocking(work)
    if getattr(_of_thread, "pid", None) != os.getpid():
        avoid_uvloop()
        # With a factory, it does not become the thread's default loop, which other libraries may have set.
        _of_thread.pid, _of_thread.runner = os.getpid(), asyncio.Runner(loop_factory=asyncio.new_event_loop)
    return _of_thread.runner.run(work)
