"""When calls have to be over. One timer for all calls of an event loop, not one for each: nearly all of them are over
long before, and setting up a timer would cost more than many a call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

_REMEMBERED = 16


class Deadlines:
    """The calls of one event loop that have the same limit, the oldest first."""

    __slots__ = ("_active", "_calls", "_timer", "limit", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: float) -> None:
        self.loop = loop
        self.limit = limit
        self._active: dict[int, tuple[float, Callable[[], None]]] = {}
        self._calls = 0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, expire: Callable[[], None]) -> int:
        """A call begins; `expire` is called if it has not ended in time. Returns its number."""
        self._calls += 1
        self._active[self._calls] = (self.loop.time() + self.limit, expire)
        if self._timer is None:
            self._timer = self.loop.call_later(self.limit, self._look)
        return self._calls

    def end(self, call: int) -> None:
        """The call is over."""
        self._active.pop(call, None)

    def _look(self) -> None:
        self._timer = None
        now = self.loop.time()
        while self._active:
            call, (deadline, expire) = next(iter(self._active.items()))
            if deadline > now:
                self._timer = self.loop.call_at(deadline, self._look)
                return
            del self._active[call]
            expire()


_known: dict[tuple[int, float], Deadlines] = {}


def deadlines(limit: float) -> Deadlines:
    """Those of the running event loop with this limit.

    Example:
        >>> async def wait() -> str:
        ...     late = asyncio.get_running_loop().create_future()
        ...     deadlines(0.01).begin(lambda: late.set_result("late"))
        ...     return await late
        >>> asyncio.run(wait())
        'late'
    """
    loop = asyncio.get_running_loop()
    key = (id(loop), limit)
    found = _known.get(key)
    if found is None or found.loop is not loop:  # the number of a loop that is gone may be another's now
        while len(_known) >= _REMEMBERED:
            _known.pop(next(iter(_known)), None)
        found = _known[key] = Deadlines(loop, limit)
    return found


class TimedCall:
    """A call in a thread that knows when it began: waiting for a free thread takes nothing off its time."""

    __slots__ = ("args", "began", "function")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.function = function
        self.args = args
        self.began = 0.0

    def __call__(self) -> Any:
        """Do it."""
        self.began = time.monotonic()
        return self.function(*self.args)

    def give_up(self, waiting: asyncio.Future[Any], limit: float) -> None:
        """Stop waiting for it, if it has really run for so long; else look again when it has."""
        if waiting.done():
            return
        left = limit if not self.began else self.began + limit - time.monotonic()
        if left > 0.001:
            waiting.get_loop().call_later(left, self.give_up, waiting, limit)
        else:
            waiting.set_exception(TimeoutError())
