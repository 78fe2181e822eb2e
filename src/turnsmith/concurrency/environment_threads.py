"""Threads that environments live in: all calls of one object come from one thread, as SQLite, Playwright and many
simulators need it.

A new environment gets a thread without any as long as the limit allows more threads; beyond that, environments share
them. A waiting environment holds no thread but its share of one. If a call takes longer than it may, its thread gets no
further environments, and those that share it are given up, because nobody knows whether that thread will ever be free.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from turnsmith.concurrency.clocks import Bottleneck, Clock, OutOfTime
from turnsmith.concurrency.generators import Generators, draw_from, enter, enter_thread, is_prepared, leave
from turnsmith.concurrency.threads import ADVICE, ThreadCall, avoid_uvloop, default_threads
from turnsmith.errors import Overloaded

_GRACE_SECONDS = 1.0
"""For an async method that was cancelled to end."""


class _Thread:
    """One thread: makes plain calls one after another, and awaits the rest on an event loop of its own.

    Plain calls are made while that loop does not run: code that starts its own (`asyncio.run`, Playwright's sync API)
    refuses to work inside of a running one.
    """

    def __init__(self, name: str) -> None:
        self.environments: set[EnvironmentThread] = set()
        self.is_hanging = False
        self.calls = 0
        """Plain calls that wait or run."""
        self.lock = threading.Lock()
        self._queue: SimpleQueue[ThreadCall[Any] | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_in_loop = False
        self._process = os.getpid()
        avoid_uvloop()  # also for loops that user code makes here
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def put(self, call: ThreadCall[Any] | None) -> None:
        """Make a call when those before it have returned; None ends the thread."""
        with self.lock:
            self._queue.put(call)
            if self._is_in_loop and self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)

    def _work(self) -> None:
        while (call := self._next()) is not None:
            enter_thread()
            value, error = call.make()
            if not is_prepared():
                error = Overloaded(_UNPREPARED)
            if os.getpid() != self._process:  # user code forked, and this is the child: it has nothing more to do
                os._exit(0)
            with self.lock:
                self.calls -= 1
            if inspect.isawaitable(value):
                self._await(call, value)
            else:
                call.settle(value, error)
            del call, value, error  # an idle thread must not keep an episode's objects alive
        if self._loop is not None:
            self._loop.close()

    def _next(self) -> ThreadCall[Any] | None:
        while self._tasks and self._loop is not None:
            with self.lock:
                if not self._queue.empty():
                    break
                self._is_in_loop = True
            self._loop.run_forever()  # until a call is put, or no task is left
            with self.lock:
                self._is_in_loop = False
        return self._queue.get()

    def _await(self, call: ThreadCall[Any], value: Awaitable[Any]) -> None:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        call.task = task = self._loop.create_task(_result_of(value), context=call.context)
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._end(call, task))

    def _end(self, call: ThreadCall[Any], task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not self._tasks and self._loop is not None:
            self._loop.stop()
        call.settle(*((None, asyncio.CancelledError()) if task.cancelled() else task.result()))


async def _result_of(value: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    try:
        return await value, None
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # SystemExit would leave the event loop, and the thread with it
        return None, error


class EnvironmentThread:
    """The share of a thread that one environment lives in."""

    __slots__ = ("_call", "_pool", "_thread", "generators", "is_lost")

    def __init__(self, pool: EnvironmentThreads, thread: _Thread) -> None:
        self.generators: Generators | None = None
        """What its calls draw from; None: the process's."""
        self._pool = pool
        self._thread: _Thread | None = thread
        self._call: ThreadCall[Any] | None = None
        self.is_lost = False
        """Whether its thread hangs in a call of another environment."""

    async def run(
        self, function: Callable[..., Any], *args: Any, limit: float, context: contextvars.Context | None = None
    ) -> Any:
        """Call `function(*args)` in the thread, await there what it returns if it is awaitable, and wait for it.

        Raises:
            OutOfTime: It has run for `limit` seconds; what cannot be cancelled goes on.
            Overloaded: Its turn did not come.
        """
        call = self.start(function, *args, context=context)
        try:
            return await call.wait(limit)
        except OutOfTime:
            if call.task is not None:  # it was cancelled, and needs a moment
                await asyncio.wait((call.future,), timeout=_GRACE_SECONDS)
            self.give_up_if_running(call)
            raise
        except asyncio.CancelledError:
            if call.is_running:  # it may still return, as others wait for
                asyncio.get_running_loop().call_later(limit, self.give_up_if_running, call)
            raise
        finally:
            if self._call is call and not call.is_running:
                self._call = None  # it holds the result, which may be large

    def start(
        self, function: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> ThreadCall[Any]:
        """Queue `function(*args)` for the thread."""
        call: ThreadCall[Any] = ThreadCall(function, args, context)
        call.context.run(draw_from, self.generators)
        thread = self._thread
        if self.is_lost or thread is None:
            call.settle(None, Overloaded(_LOST))
            return call
        self._call = call
        with thread.lock:
            thread.calls += 1
            if thread.calls > 1 and not thread.is_hanging:
                call.mark_queued(self._pool.bottleneck)
        thread.put(call)
        return call

    @property
    def is_busy(self) -> bool:
        """Whether a call was given up that still runs."""
        return self._call is not None and self._call.is_running and self._call.started_at > 0

    async def settle(self) -> None:
        """Wait for a call that still runs, however long it takes."""
        if self._call is not None and self._call.started_at:
            await asyncio.wait((self._call.future,))

    def give_up_if_running(self, call: ThreadCall[Any]) -> None:
        """If a call still runs, its thread gets no further environments, and the others in it are given up."""
        thread = self._thread
        if thread is None or not call.is_running or thread.is_hanging:
            return
        self._pool.retire(thread)
        for other in thread.environments - {self}:
            other.is_lost = True
            if other._call is not None and not other._call.started_at:
                other._call.settle(None, Overloaded(_LOST))

    def leave(self) -> None:
        """The environment is gone."""
        thread, self._thread, self._call = self._thread, None, None
        if thread is not None:
            self._pool.leave(thread, self)


class EventLoopThread:
    """The event loop's own thread, for objects that live there."""

    __slots__ = ("generators",)
    is_busy = False

    def __init__(self, generators: Generators | None = None) -> None:
        self.generators = generators
        """What its calls draw from; None: the process's."""

    async def run(
        self, function: Callable[..., Any], *args: Any, limit: float, context: contextvars.Context | None = None
    ) -> Any:
        """Call `function(*args)` here, and await what it returns if it is awaitable; as `EnvironmentThread.run`."""
        async with Clock(limit):
            token = enter(self.generators)
            try:
                value = context.run(function, *args) if context else function(*args)
                return await value if inspect.isawaitable(value) else value
            finally:
                leave(token)

    async def settle(self) -> None:
        """Nothing to wait for."""

    def leave(self) -> None:
        """Nothing to do."""


_LOST = "The thread that it shares with other environments hangs in a call of another one. It is retried elsewhere."


_UNPREPARED = (
    "Another environment imported torch while its call ran, so numbers that it drew may be another's. It begins again; "
    "`import torch` at the top of the module avoids this."
)


class EnvironmentThreads:
    """At most `limit` threads (and those that hang), started when they are needed.

    Example:
        >>> async def where() -> bool:
        ...     share = EnvironmentThreads(limit=2).assign()
        ...     threads = {await share.run(threading.get_ident, limit=9) for _ in range(3)}
        ...     share.leave()
        ...     return len(threads) == 1 and threads != {threading.get_ident()}
        >>> asyncio.run(where())
        True
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bottleneck = _bottleneck(limit)
        """What its calls wait for."""
        self._threads: list[_Thread] = []
        self._started = 0
        self._lock = threading.Lock()

    def assign(self) -> EnvironmentThread:
        """Take a share of the thread with the fewest environments."""
        with self._lock:
            thread = min(self._threads, key=lambda one: (len(one.environments), one.calls), default=None)
            if thread is None or (thread.environments and len(self._threads) < self.limit):
                self._started += 1
                thread = _Thread(f"turnsmith-environments-{self._started}")
                self._threads.append(thread)
            share = EnvironmentThread(self, thread)
            thread.environments.add(share)
            return share

    def retire(self, thread: _Thread) -> None:
        """Take a thread that hangs out of use; it ends with the last environment in it."""
        with self._lock:
            thread.is_hanging = True
            with suppress(ValueError):
                self._threads.remove(thread)

    def leave(self, thread: _Thread, share: EnvironmentThread) -> None:
        """Take an environment out of its thread."""
        with self._lock:
            thread.environments.discard(share)
            is_over = thread.is_hanging and not thread.environments
        if is_over:
            thread.put(None)


def _bottleneck(limit: int) -> Bottleneck:
    return Bottleneck(f"one of {limit} threads that environments live in", ADVICE)


_shared: EnvironmentThreads | None = None


def shared_environment_threads() -> EnvironmentThreads:
    """The threads for environments of this process."""
    global _shared
    if _shared is None:
        _shared = EnvironmentThreads(default_threads())
    return _shared


def _forget_shared() -> None:
    global _shared
    _shared = None


os.register_at_fork(after_in_child=_forget_shared)  # threads do not survive a fork
