"""A bounded pool of threads for code that may block, shared by all environments of a process.

Not `concurrent.futures`: its threads are joined when Python exits, so one environment that hangs would keep the process
alive for ever; these are daemons. It also costs less for each call.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")
_Job = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[..., Any], tuple[Any, ...]]


class ThreadPool:
    """At most `limit` daemon threads, started when needed. Waiting work holds no thread.

    Example:
        >>> asyncio.run(ThreadPool(limit=2).run(pow, 2, 10))
        1024
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._free = 0

    async def run(self, function: Callable[..., Result], *args: Any) -> Result:
        """Call `function(*args)` in a thread and wait for it without blocking the event loop.

        When the waiting task is cancelled the call still runs to its end: a thread cannot be stopped from outside.
        """
        return await self.start(function, *args)

    def start(self, function: Callable[..., Result], *args: Any) -> asyncio.Future[Result]:
        """Begin `function(*args)` in a thread; the future is done when it returns."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        with self._lock:
            self._free -= 1
            grow = self._free < 0 and self._threads < self.limit
            if grow:
                self._threads += 1
                self._free += 1
        self._jobs.put((loop, future, function, args))
        if grow:
            threading.Thread(target=self._work, name=f"turnwise-environment-{self._threads}", daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            loop, future, function, args = self._jobs.get()
            value: Any = None
            error: BaseException | None = None
            try:
                value = function(*args)
            except BaseException as raised:  # sys.exit() in user code must cost its episode, not this thread
                error = raised
            with self._lock:
                self._free += 1
            try:
                loop.call_soon_threadsafe(_settle, future, value, error)
            except RuntimeError:  # the loop was closed meanwhile: nobody waits any more
                pass
            # An idle thread must not keep an episode's objects alive.
            del loop, future, function, args, value, error


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    elif isinstance(error, Exception) and not isinstance(error, StopIteration):
        future.set_exception(error)
    else:
        # A future refuses StopIteration, and SystemExit would end the event loop.
        replacement = RuntimeError(f"{type(error).__name__}: {error}")
        replacement.__cause__ = error
        future.set_exception(replacement)


def is_cancelled_from_outside(error: BaseException) -> bool:
    """Whether the current task itself is being cancelled, and not just something that it waited for."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


_shared: tuple[int, ThreadPool] | None = None


def shared_threads() -> ThreadPool:
    """The pool of this process (a forked child gets its own, because threads do not survive a fork)."""
    global _shared
    if _shared is None or _shared[0] != os.getpid():
        # Environments mostly wait (for a service, a subprocess), so more threads than cores, but never without bound.
        _shared = os.getpid(), ThreadPool(limit=min(64, 16 + 4 * (os.cpu_count() or 1)))
    return _shared[1]
