"""Writes down which environments are doing something, for the case that their process ends by it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from turnsmith.env.local_host import EnvironmentHost
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.threads import ThreadPool


class Busy:
    """Marks an environment while code of its user runs."""

    def __init__(self, cells: memoryview) -> None:
        self._cells = cells
        self._free = deque(range(len(cells)))

    def call(self, number: int, function: Callable[..., Any], *args: Any) -> Any:
        """Call the function; whatever it does to this process is then known to be this environment's doing."""
        try:
            place = self._free.popleft()
        except IndexError:  # more than there are places for: then it is not known
            return function(*args)
        self._cells[place] = number
        try:
            return function(*args)
        finally:
            self._cells[place] = 0
            self._free.append(place)


class MarkedHost(EnvironmentHost):
    """A host whose calls are marked."""

    __slots__ = ("_busy_now", "_number")

    def __init__(self, spec: EnvironmentSpec, threads: ThreadPool, busy: Busy, number: int) -> None:
        super().__init__(spec, threads)
        self._busy_now = busy
        self._number = number

    async def _in_thread(
        self, method: str, function: Callable[..., Any], *args: Any, limit: float | None = None
    ) -> Any:
        marked = partial(self._busy_now.call, self._number, function)
        return await super()._in_thread(method, marked, *args, limit=limit)
