"""Threads for code that may block, shared by all episodes of a process; `environment_threads.py` has those of
environments.

Not `concurrent.futures`: Python joins its threads at exit, so one environment that hangs would keep the process alive
for ever.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from turnsmith.concurrency.clocks import OVERLOAD_SECONDS, Bottleneck, OutOfTime, TimeLimit, Wait, add_clock

Result = TypeVar("Result")


class ThreadCall(TimeLimit, Generic[Result]):
    """A call that a thread makes, or will make when it is free.

    Args:
        function: What to call.
        args: Its arguments.
        context: Where to run it; by default a copy of the caller's context.
    """

    __slots__ = (
        "_args", "_bottleneck", "_function", "_is_wanted", "_limit", "_returned", "_wait", "_waiter", "context",
        "future", "started_at", "task",
    )  # fmt: skip

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], context: contextvars.Context | None = None
    ) -> None:
        super().__init__()
        self._function = function
        self._args = args
        self._is_wanted = True
        self._bottleneck: Bottleneck | None = None
        self._wait: Wait | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._limit: float | None = None
        self.context = context or contextvars.copy_context()
        self.context.run(add_clock, self)  # what the call itself waits for stops its clock, too
        self.future: asyncio.Future[Result] = self._loop.create_future()
        """Done when the call has returned. It stays valid when the caller stops waiting: a thread cannot be stopped."""
        self._returned = _Returned.to(self._loop)
        self.started_at = 0.0
        """`time.monotonic()` when a thread began it; 0 while it waits for one."""
        self.task: asyncio.Task[Any] | None = None
        """What the function returned, if its thread has to await it."""

    @property
    def is_running(self) -> bool:
        """Whether it has not returned yet."""
        return not self.future.done()

    def mark_queued(self, bottleneck: Bottleneck) -> None:
        """Its thread is busy: the time until it begins is waiting. To be called before a thread gets it."""
        self._bottleneck = bottleneck

    async def wait(self, limit: float | None = None) -> Result:
        """Wait for the call to return. If the waiter is cancelled before a thread has begun the call, none will.

        Raises:
            OutOfTime: It has run for `limit` seconds. Time in the queue for a free thread does not count.
            Overloaded: No thread began it for very long.
        """
        # By hand, for most calls are short: a `Clock` and `asyncio.wait` would cost several times as much as a step.
        if not self.future.done():
            self._waiter, self._limit = self._loop.create_future(), limit
            if self._bottleneck is not None and not self.started_at:
                self._wait = Wait(self._bottleneck)
                self.start(OVERLOAD_SECONDS)
            else:
                self.start(limit)
            try:
                await self._waiter
            finally:
                self._stop_waiting()
        return self.future.result()

    def _stop_waiting(self) -> None:
        self._waiter = None
        self.stop()
        self._end_wait()
        if self.is_running:
            self._is_wanted = bool(self.started_at)
            if self.task is not None:
                self.task.get_loop().call_soon_threadsafe(self.task.cancel)

    def _end_wait(self) -> None:
        wait, self._wait = self._wait, None
        if wait is not None:
            wait.end()

    def run_out(self) -> None:
        """Its time, or that of its wait for a thread, is over: whoever waits gets an error."""
        self.stop()
        if self._waiter is not None and not self._waiter.done():
            error = self._wait.overload() if self._wait else OutOfTime(f"it took longer than {self._limit:g} seconds")
            self._waiter.set_exception(error)

    def _begin(self) -> None:
        """A thread has begun it: from now on its own time runs."""
        if self._wait is not None:
            self._end_wait()
            self.start(self._limit)

    def make(self) -> tuple[Any, BaseException | None]:
        """Make the call, in a thread; returns its value and what it raised."""
        self.started_at = time.monotonic()
        if self._bottleneck is not None:
            self.call_in_loop(self._begin)
        try:
            return (self.context.run(self._function, *self._args) if self._is_wanted else None), None
        except BaseException as raised:  # sys.exit() in user code must cost its episode, not this thread
            return None, raised

    def settle(self, value: Any, error: BaseException | None = None) -> None:
        """Bring the outcome to the event loop of whoever waits; from any thread."""
        if self._loop.is_closed():  # nobody waits any more
            return
        returned = self._returned
        returned.calls.append((self, value, error))
        if not returned.is_told:
            returned.is_told = True
            self.call_in_loop(returned.settle)

    def deliver(self, value: Any, error: BaseException | None) -> None:
        """Give whoever waits the outcome; in the event loop's thread."""
        if self.future.done():  # it was failed while its thread hung
            return
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if error is None:
            self.future.set_result(value)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            self.future.set_exception(error)
        else:
            # A future refuses StopIteration, and SystemExit would end the event loop.
            replacement = RuntimeError(f"{type(error).__name__}: {error}")
            replacement.__cause__ = error
            self.future.set_exception(replacement)
        self.future.exception()  # or asyncio would log that of a call which nobody waits for any more


class _Returned:
    """Calls that threads have made, on their way to an event loop.

    It is woken once for many of them: each time is a system call, in which the thread gives up Python's lock.
    """

    def __init__(self) -> None:
        self.calls: deque[tuple[ThreadCall[Any], Any, BaseException | None]] = deque()
        self.is_told = False
        """Whether the event loop will look at `calls`. A thread reads it after it has added a call, and the loop sets
        it back before it takes them: none is left behind."""

    @staticmethod
    def to(loop: asyncio.AbstractEventLoop) -> _Returned:
        """Those of an event loop; called in its thread."""
        returned = _returned.get(loop)
        if returned is None:
            returned = _returned[loop] = _Returned()
        return returned

    def settle(self) -> None:
        """Give those who wait their outcomes; in the event loop's thread."""
        self.is_told = False
        while self.calls:
            call, value, error = self.calls.popleft()
            call.deliver(value, error)


_returned: WeakKeyDictionary[asyncio.AbstractEventLoop, _Returned] = WeakKeyDictionary()


class ThreadPool:
    """At most `limit` daemon threads, started when they are needed. Waiting calls hold no thread.

    Example:
        >>> asyncio.run(ThreadPool(limit=2).run(pow, 2, 10))
        1024
    """

    def __init__(self, limit: int, bottleneck: Bottleneck | None = None) -> None:
        self.limit = limit
        self._bottleneck = bottleneck
        self._calls: SimpleQueue[ThreadCall[Any]] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0
        self._process = os.getpid()

    async def run(
        self,
        function: Callable[..., Result],
        *args: Any,
        limit: float | None = None,
        context: contextvars.Context | None = None,
    ) -> Result:
        """Call `function(*args)` in a thread and wait for it, as `ThreadCall.wait` does."""
        return await self.start(function, *args, context=context).wait(limit)

    def start(
        self, function: Callable[..., Result], *args: Any, context: contextvars.Context | None = None
    ) -> ThreadCall[Result]:
        """Queue `function(*args)` for the next free thread."""
        call: ThreadCall[Result] = ThreadCall(function, args, context)
        with self._lock:
            self._idle -= 1
            grow = self._idle < 0 and self._threads < self.limit
            if grow:
                self._threads += 1
                self._idle += 1
            elif self._idle < 0:
                what = f"one of {self.limit} threads for tools and reward functions"
                call.mark_queued(self._bottleneck or Bottleneck(what, ADVICE))
        self._calls.put(call)
        if grow:
            avoid_uvloop()
            threading.Thread(target=self._work, name=f"turnsmith-call-{self._threads}", daemon=True).start()
        return call

    def _work(self) -> None:
        while True:
            call = self._calls.get()
            value, error = call.make()
            if os.getpid() != self._process:  # user code forked, and this is the child: it has nothing more to do
                os._exit(0)
            with self._lock:
                self._idle += 1
            call.settle(value, error)
            del call, value, error  # an idle thread must not keep an episode's objects alive


def avoid_uvloop() -> None:
    """Have asyncio make its own event loops in this process: uvloop's cannot start processes in two threads at once.

    Ray's workers install uvloop where it is installed. Loops that run already stay as they are.
    """
    if type(asyncio.get_event_loop_policy()).__module__.partition(".")[0] == "uvloop":
        asyncio.set_event_loop_policy(None)


ADVICE = "make methods that wait async, or use more processes (ray.num_actors)"
"""What to do when calls wait for threads."""


def is_cancelled_from_outside(error: BaseException) -> bool:
    """Whether the current task itself is being cancelled, and not just something that it awaited."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def cores() -> int:
    """The cores that this process may use: a container or `taskset` may leave it fewer than there are.

    Example:
        >>> cores() >= 1
        True
    """
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def default_threads() -> int:
    """Threads of a process: they mostly wait (for a service, a subprocess), so more than cores, but not without bound.

    Example:
        >>> 16 < default_threads() <= 64
        True
    """
    return min(64, 16 + 4 * cores())


_shared: ThreadPool | None = None


def shared_threads() -> ThreadPool:
    """The pool of this process."""
    global _shared
    if _shared is None:
        _shared = ThreadPool(limit=default_threads())
    return _shared


def _forget_shared_threads() -> None:
    global _shared
    _shared = None


os.register_at_fork(after_in_child=_forget_shared_threads)  # threads do not survive a fork
