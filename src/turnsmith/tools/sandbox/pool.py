"""Sandbox processes that are ready before a caller asks for one.

Each runs one program and is thrown away; a new one is started in the background. Letting one interpreter run many
programs, or fork a child for each, would be cheaper, but files, memory and processes of one program could then reach
the next, and with them those of another episode.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue

from turnsmith.concurrency.clocks import Bottleneck
from turnsmith.concurrency.threads import cores
from turnsmith.tools.sandbox.command import SandboxLimits, command_for
from turnsmith.tools.sandbox.process import SandboxProcess


class SandboxPool:
    """Keeps `idle` processes ready and lets at most `limit` exist at a time; further callers wait.

    A single thread starts and reaps all processes: starting one takes a millisecond or two, which no event loop should
    spend, and a process dies with the thread that started it, so that thread must outlive the callers.
    """

    def __init__(self, start: Callable[[], SandboxProcess], *, idle: int, limit: int) -> None:
        self._start = start
        self._max_idle = idle
        self._limit = limit
        self.bottleneck = Bottleneck(
            f"one of {limit} sandboxes of this process",
            "more cores, more memory (environment.isolation_memory_gib) or more processes (ray.num_actors) allow more",
        )
        """What callers wait for."""
        self._lock = threading.Lock()
        self._idle: deque[SandboxProcess] = deque()
        self._callers: deque[Future[SandboxProcess]] = deque()
        self._alive = 0
        self._closed = False
        self._released: SimpleQueue[SandboxProcess | None] = SimpleQueue()
        """Processes to reap; None only wakes the thread up."""
        self._thread = threading.Thread(target=self._run, name="turnsmith-sandbox", daemon=True)
        self._thread.start()
        self._released.put(None)

    async def acquire(self) -> SandboxProcess:
        """Take a process for one program; the caller must `release` it."""
        with self._lock:
            while self._idle:
                process = self._idle.popleft()
                if process.is_alive:
                    return process
                self._released.put(process)
            future: Future[SandboxProcess] = Future()
            self._callers.append(future)
        self._released.put(None)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancel() and future.exception() is None:  # a process was assigned at the same moment
                self.release(future.result())
            raise

    def release(self, process: SandboxProcess) -> None:
        """Kill a process; the pool starts another in its place."""
        process.kill()
        self._released.put(process)

    def close(self) -> None:
        """Kill the idle processes and end the thread. Only while no process is in use."""
        with self._lock:
            self._closed = True
        self._released.put(None)
        self._thread.join(timeout=20)

    def _run(self) -> None:
        while not self._closed:
            process = self._released.get()
            if process is not None:
                self._reap(process)
            while self._reserve_place() and self._start_process():
                pass
        while self._idle:
            self._reap(self._idle.popleft())
        while not self._released.empty():
            if (process := self._released.get()) is not None:
                self._reap(process)

    def _reap(self, process: SandboxProcess) -> None:
        process.kill()
        process.reap()
        with self._lock:
            self._alive -= 1

    def _reserve_place(self) -> bool:
        """Count one more process as alive if one is wanted and allowed."""
        with self._lock:
            while self._callers and self._callers[0].cancelled():
                self._callers.popleft()
            is_wanted = bool(self._callers) or len(self._idle) < self._max_idle
            if not is_wanted or self._alive >= self._limit or self._closed:
                return False
            self._alive += 1
            return True

    def _start_process(self) -> bool:
        try:
            process = self._start()
        except (
            Exception
        ) as error:  # out of memory or processes: all waiting callers get the error, later ones try again
            with self._lock:
                self._alive -= 1
                callers = list(self._callers)
                self._callers.clear()
            for future in callers:
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)
            return False
        self._assign(process)
        return True

    def _assign(self, process: SandboxProcess) -> None:
        while True:
            with self._lock:
                if not self._callers:
                    self._idle.append(process)
                    return
                future = self._callers.popleft()
            if future.set_running_or_notify_cancel():  # False: the caller was cancelled
                future.set_result(process)
                return


_pools: dict[tuple[int, SandboxLimits, bool], SandboxPool] = {}
_lock = threading.Lock()


def shared_pool(limits: SandboxLimits, *, is_sandboxed: bool = True) -> SandboxPool:
    """The pool of this process for these limits; it outlives the environments and tools of single episodes.

    A forked child gets pools of its own, because threads do not survive a fork.
    """
    key = os.getpid(), limits, is_sandboxed
    with _lock:
        if key not in _pools:
            start = partial(SandboxProcess.start, command_for(limits, is_sandboxed=is_sandboxed))
            _pools[key] = SandboxPool(start, idle=4, limit=most_programs(limits))
        return _pools[key]


def most_programs(limits: SandboxLimits) -> int:
    """How many programs may run at once: even if each takes all that it may, they leave half of the memory free.

    That is the memory of the worker process, if this is one: a worker that takes more is killed, with all its episodes.

    Example:
        >>> most_programs(SandboxLimits(memory=2**40))
        1
    """
    memory = int(os.environ.get("TURNSMITH_WORKER_MEMORY", 0)) or os.sysconf("SC_PAGE_SIZE") * os.sysconf(
        "SC_PHYS_PAGES"
    )
    return max(1, min(max(8, 4 * cores()), memory // 2 // (limits.memory + limits.disk)))
