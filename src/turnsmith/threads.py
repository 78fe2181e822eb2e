"""A bounded pool of threads for code that may block, shared by all environments of a process.

Not `concurrent.futures`: its threads are joined when Python exits, so one environment that hangs would keep the process
alive for ever; these are daemons. It also costs less for each call.

Most calls return at once. An event loop that has nothing else to do therefore waits a moment for the thread: a call
that returns within that moment costs half of one that has to wake the event loop up.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")
PATIENCE = 0.0002
"""Seconds that an idle event loop waits for a thread; what arrives meanwhile is late by as much at the most."""
STREAK = 0.005
"""Seconds after which the event loop gets its turn in any case, so that timers and sockets are looked at."""


class _Job:
    """One call."""

    __slots__ = ("args", "claim", "error", "function", "future", "loop", "over", "value")

    def __init__(self, loop: asyncio.AbstractEventLoop, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.function = function
        self.args = args
        self.value: Any = None
        self.error: BaseException | None = None
        self.over: threading.Lock | None = None
        """Opened when the call has returned; None if nobody waits for it outside the event loop."""
        self.claim = threading.Lock()
        """Taken by whoever is first: the thread that has a result, or the waiter that gives up."""

    def settle(self) -> None:
        """Hand the result to the future."""
        future, error = self.future, self.error
        if future.done():
            return
        if error is None:
            future.set_result(self.value)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            future.set_exception(error)
        else:
            # A future refuses StopIteration, and SystemExit would end the event loop.
            replacement = RuntimeError(f"{type(error).__name__}: {error}")
            replacement.__cause__ = error
            future.set_exception(replacement)


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
        self._looked = 0.0
        """When an event loop last had its turn."""

    async def run(self, function: Callable[..., Result], *args: Any) -> Result:
        """Call `function(*args)` in a thread and wait for it without blocking the event loop.

        When the waiting task is cancelled the call still runs to its end: a thread cannot be stopped from outside.
        """
        return await self.start(function, *args)

    def start(self, function: Callable[..., Result], *args: Any) -> asyncio.Future[Result]:
        """Begin `function(*args)` in a thread; the future is done when it returns."""
        loop = asyncio.get_running_loop()
        job = _Job(loop, function, args)
        with self._lock:
            self._free -= 1
            is_free = self._free >= 0
            grow = not is_free and self._threads < self.limit
            if grow:
                self._threads += 1
                self._free += 1
        # What is ready to run is known only to asyncio itself; another loop than its own is never kept waiting.
        waits = is_free and not getattr(loop, "_ready", True) and time.monotonic() - self._looked < STREAK
        if waits:
            job.over = threading.Lock()
            job.over.acquire()
        self._jobs.put(job)
        if grow:
            threading.Thread(target=self._work, name=f"turnsmith-environment-{self._threads}", daemon=True).start()
        # Whoever loses the claim knows that the other one has it: then the result is there.
        if job.over is not None and (job.over.acquire(timeout=PATIENCE) or not job.claim.acquire(blocking=False)):
            job.settle()
        return job.future

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                job.value = job.function(*job.args)
            except BaseException as raised:  # sys.exit() in user code must cost its episode, not this thread
                job.error = raised
            with self._lock:
                self._free += 1
            if job.over is not None and job.claim.acquire(blocking=False):
                job.over.release()
            else:
                try:
                    job.loop.call_soon_threadsafe(self._settle, job)
                except RuntimeError:  # the loop was closed meanwhile: nobody waits any more
                    pass
            del job  # an idle thread must not keep an episode's objects alive

    def _settle(self, job: _Job) -> None:
        self._looked = time.monotonic()
        job.settle()


def is_cancelled_from_outside(error: BaseException) -> bool:
    """Whether the current task itself is being cancelled, and not just something that it waited for."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def cores() -> int:
    """The cores that this process may use: a container or `taskset` may leave it fewer than there are.

    Example:
        >>> cores() >= 1
        True
    """
    return len(os.sched_getaffinity(0))


_shared: tuple[int, ThreadPool] | None = None


def shared_threads() -> ThreadPool:
    """The pool of this process (a forked child gets its own, because threads do not survive a fork)."""
    global _shared
    if _shared is None or _shared[0] != os.getpid():
        # Environments mostly wait (for a service, a subprocess), so more threads than cores, but never without bound.
        _shared = os.getpid(), ThreadPool(limit=min(64, 16 + 4 * cores()))
    return _shared[1]
