"""Cells that are ready before anybody asks for one.

Each serves one program and is thrown away; a new one is started behind the caller's back. Letting one interpreter serve
many programs, or fork a child for each, would be cheaper, but then files, memory and processes of one program would be
in reach of the next, and with them what another episode did.
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

from turnsmith.threads import cores
from turnsmith.tools.sandbox.command import command_for
from turnsmith.tools.sandbox.limits import SandboxLimits
from turnsmith.tools.sandbox.process import Cell


class CellPool:
    """Keeps `ready` cells waiting, and lets at most `most` exist at a time; who comes then waits for a free place.

    One thread starts and buries all cells: starting takes a millisecond or two, which no event loop should spend, and
    a cell dies with the thread that started it, so that must be one which lasts.
    """

    def __init__(self, start: Callable[[], Cell], *, ready: int, most: int) -> None:
        self._start = start
        self._ready = ready
        self._most = most
        self._lock = threading.Lock()
        self._warm: deque[Cell] = deque()
        self._waiting: deque[Future[Cell]] = deque()
        self._alive = 0
        self._closed = False
        self._ended: SimpleQueue[Cell | None] = SimpleQueue()
        """Cells to bury; None only asks the thread to look whether something is to be done."""
        self._thread = threading.Thread(target=self._keep, name="turnsmith-sandbox", daemon=True)
        self._thread.start()
        self._ended.put(None)

    async def take(self) -> Cell:
        """A cell, for the caller alone, who must give it to `release`."""
        with self._lock:
            while self._warm:
                cell = self._warm.popleft()
                if cell.is_alive:
                    return cell
                self._ended.put(cell)
            future: Future[Cell] = Future()
            self._waiting.append(future)
        self._ended.put(None)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancel() and future.exception() is None:  # it was given one at the same moment
                self.release(future.result())
            raise

    def release(self, cell: Cell) -> None:
        """Kill a cell; another takes its place."""
        cell.kill()
        self._ended.put(cell)

    def close(self) -> None:
        """Kill the cells that wait, and end the thread. For when no call is going on."""
        with self._lock:
            self._closed = True
        self._ended.put(None)
        self._thread.join(timeout=20)

    def _keep(self) -> None:
        while not self._closed:
            ended = self._ended.get()
            if ended is not None:
                self._bury(ended)
            while self._is_one_wanted() and self._start_one():
                pass
        while self._warm:
            self._bury(self._warm.popleft())
        while not self._ended.empty():
            if (ended := self._ended.get()) is not None:
                self._bury(ended)

    def _bury(self, cell: Cell) -> None:
        cell.kill()
        cell.reap()
        with self._lock:
            self._alive -= 1

    def _is_one_wanted(self) -> bool:
        with self._lock:
            while self._waiting and self._waiting[0].cancelled():
                self._waiting.popleft()
            wanted = bool(self._waiting) or len(self._warm) < self._ready
            if not wanted or self._alive >= self._most or self._closed:
                return False
            self._alive += 1
            return True

    def _start_one(self) -> bool:
        try:
            cell = self._start()
        except Exception as error:  # no memory, no processes left: all who wait are told, who comes later tries again
            with self._lock:
                self._alive -= 1
                waiting = list(self._waiting)
                self._waiting.clear()
            for future in waiting:
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)
            return False
        self._offer(cell)
        return True

    def _offer(self, cell: Cell) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._warm.append(cell)
                    return
                future = self._waiting.popleft()
            if future.set_running_or_notify_cancel():  # False: the caller has given up
                future.set_result(cell)
                return


_pools: dict[tuple[int, SandboxLimits, bool], CellPool] = {}
_lock = threading.Lock()


def shared_pool(limits: SandboxLimits, *, is_sandboxed: bool = True) -> CellPool:
    """The pool of this process for these limits: environments live for one episode, their tools' pool lives on.

    A forked child gets pools of its own; those of its parent are not its to use.
    """
    key = os.getpid(), limits, is_sandboxed
    with _lock:
        if key not in _pools:
            start = partial(Cell.start, command_for(limits, is_sandboxed=is_sandboxed))
            _pools[key] = CellPool(start, ready=4, most=max(8, 4 * cores()))
        return _pools[key]
