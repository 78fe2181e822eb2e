"""A bounded pool of daemon threads for code that may block, shared by all environments of a process.

Not `concurrent.futures`: Python joins its threads at exit, so one environment that hangs would keep the process alive
for ever.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class ThreadCall(Generic[Result]):
    """A call that a thread of the pool makes, or will make when one is free."""

    __slots__ = ("_args", "_function", "_is_wanted", "future", "started_at")

    def __init__(self, function: Callable[..., Result], args: tuple[Any, ...]) -> None:
        self._function = function
        self._args = args
        self._is_wanted = True
        self.future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        """Done when the call has returned. It stays valid when the caller stops waiting: a thread cannot be stopped."""
        self.future.add_done_callback(_mark_retrieved)
        self.started_at = 0.0
        """`time.monotonic()` when a thread began it; 0 while it waits for one."""

    @property
    def is_running(self) -> bool:
        """Whether it has not returned yet."""
        return not self.future.done()

    async def wait(self, limit: float | None = None) -> Result:
        """Wait for the call to return. If the waiter is cancelled before a thread has begun the call, none will.

        Raises:
            TimeoutError: It has run for `limit` seconds. Time in the queue for a free thread does not count.
        """
        remaining = limit
        try:
            while not (await asyncio.wait((self.future,), timeout=remaining))[0]:
                if limit is not None and self.started_at:
                    remaining = self.started_at + limit - time.monotonic()
                    if remaining <= 0:
                        raise TimeoutError
        except asyncio.CancelledError:
            self._is_wanted = bool(self.started_at)
            raise
        return self.future.result()

    def run(self) -> None:
        """Make the call, in a thread of the pool."""
        self.started_at = time.monotonic()
        value: Any = None
        error: BaseException | None = None
        try:
            value = self._function(*self._args) if self._is_wanted else None
        except BaseException as raised:  # sys.exit() in user code must cost its episode, not this thread
            error = raised
        try:
            self.future.get_loop().call_soon_threadsafe(self._settle, value, error)
        except RuntimeError:  # the event loop was closed meanwhile: nobody waits any more
            pass

    def _settle(self, value: Any, error: BaseException | None) -> None:
        if error is None:
            self.future.set_result(value)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            self.future.set_exception(error)
        else:
            # A future refuses StopIteration, and SystemExit would end the event loop.
            replacement = RuntimeError(f"{type(error).__name__}: {error}")
            replacement.__cause__ = error
            self.future.set_exception(replacement)


class ThreadPool:
    """At most `limit` daemon threads, started when they are needed. Waiting calls hold no thread.

    Example:
        >>> asyncio.run(ThreadPool(limit=2).run(pow, 2, 10))
        1024
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._calls: SimpleQueue[ThreadCall[Any]] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0
        self._process = os.getpid()

    async def run(self, function: Callable[..., Result], *args: Any, limit: float | None = None) -> Result:
        """Call `function(*args)` in a thread and wait for it, as `ThreadCall.wait` does."""
        return await self.start(function, *args).wait(limit)

    def start(self, function: Callable[..., Result], *args: Any) -> ThreadCall[Result]:
        """Queue `function(*args)` for the next free thread."""
        call = ThreadCall(function, args)
        with self._lock:
            self._idle -= 1
            grow = self._idle < 0 and self._threads < self.limit
            if grow:
                self._threads += 1
                self._idle += 1
        self._calls.put(call)
        if grow:
            threading.Thread(target=self._work, name=f"turnsmith-environment-{self._threads}", daemon=True).start()
        return call

    def _work(self) -> None:
        while True:
            call = self._calls.get()
            call.run()
            if os.getpid() != self._process:  # user code forked, and this is the child: it has nothing more to do
                os._exit(0)
            del call  # an idle thread must not keep an episode's objects alive
            with self._lock:
                self._idle += 1


def _mark_retrieved(future: asyncio.Future[Any]) -> None:
    """Keep asyncio from logging the exception of a call that nobody waits for any more."""
    if not future.cancelled():
        future.exception()


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
    return len(os.sched_getaffinity(0))


_shared: ThreadPool | None = None


def shared_threads() -> ThreadPool:
    """The pool of this process."""
    global _shared
    if _shared is None:
        # Environments mostly wait (for a service, a subprocess), so more threads than cores, but never without bound.
        _shared = ThreadPool(limit=min(64, 16 + 4 * cores()))
    return _shared


def _forget_shared_threads() -> None:
    global _shared
    _shared = None


os.register_at_fork(after_in_child=_forget_shared_threads)  # threads do not survive a fork
