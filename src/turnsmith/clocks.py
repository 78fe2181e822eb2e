"""Time limits that count work alone: while work waits its turn, every clock on it stands still.

Whatever hands out a scarce thing (a thread, a sandbox, a place in a worker) waits for it inside `waiting`. That stops
the clocks around it, adds up the time by bottleneck, and says in the log which setting gives more of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from turnsmith.errors import Overloaded

logger = logging.getLogger(__name__)

OVERLOAD_SECONDS = 600.0
"""After so long a wait, work is given up as `Overloaded`: something hangs, or far too much was begun at once."""
_LONG_WAIT = 5.0
_WARN_EVERY = 60.0


class OutOfTime(TimeoutError):
    """A clock has run down; a `TimeoutError` of any other class is the user's own."""


class Pausable(Protocol):
    """A clock, here or in another process."""

    def pause(self, bottleneck: Bottleneck | None = None) -> None:
        """Stop it; each `pause` needs its own `resume`."""
        ...

    def resume(self, bottleneck: Bottleneck | None = None) -> None:
        """Let it run again."""
        ...


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """Something that work waits for."""

    what: str
    """What there is too little of, such as "one of 24 threads for plain methods"."""
    advice: str
    """What gives more of it, such as a setting."""

    def __str__(self) -> str:
        return f"{self.what} ({self.advice})"


class Clock:
    """A time limit on what is done inside of it, without the time that it waits its turn.

    Example:
        >>> async def wait_and_work():
        ...     async with Clock(0.05) as clock:
        ...         async with waiting(Bottleneck("a desk", "buy one")):
        ...             await asyncio.sleep(0.1)
        ...         return round(clock.waited, 1)
        >>> asyncio.run(wait_and_work())
        0.1
    """

    __slots__ = (
        "_cancels_before", "_due", "_loop", "_paused", "_paused_at", "_task", "_timer", "_token", "expired", "seconds",
        "waits",
    )  # fmt: skip

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.waits: dict[Bottleneck, float] = {}
        """Seconds that it stood still because work waited its turn, by what the work waited for."""
        self.expired = False
        """Whether the time is over."""
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._paused = 0
        self._paused_at = 0.0

    @property
    def waited(self) -> float:
        """Seconds that it stood still because work waited its turn."""
        return sum(self.waits.values())

    async def __aenter__(self) -> Clock:
        self._task = asyncio.current_task()
        assert self._task is not None
        self._cancels_before = self._task.cancelling()
        if self.seconds is not None:
            self._due = (self._paused_at if self._paused else self._loop.time()) + self.seconds
        self._set_timer()
        self._token = _clocks.set((*_clocks.get(), self))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _clocks.reset(self._token)
        task, self._task = self._task, None
        assert task is not None
        self._stop_timer()
        # As asyncio.timeout does: if somebody else has cancelled the task as well, it stays cancelled.
        if self.expired and task.uncancel() <= self._cancels_before and kind is asyncio.CancelledError:
            raise OutOfTime(f"it took longer than {self.seconds:g} seconds") from error

    def pause(self, bottleneck: Bottleneck | None = None) -> None:
        """Stop it; time without a `bottleneck` does not count as waiting. Safe to call from another thread's loop."""
        if _running_loop() is not self._loop:
            self._loop.call_soon_threadsafe(self.pause, bottleneck)
            return
        self._paused += 1
        if self._paused == 1:
            self._paused_at = self._loop.time()
            self._stop_timer()

    def resume(self, bottleneck: Bottleneck | None = None) -> None:
        """Let it run again."""
        if _running_loop() is not self._loop:
            self._loop.call_soon_threadsafe(self.resume, bottleneck)
            return
        self._paused -= 1
        if self._paused:
            return
        stood = self._loop.time() - self._paused_at
        if bottleneck is not None:
            self.waits[bottleneck] = self.waits.get(bottleneck, 0.0) + stood
        self._due += stood
        self._set_timer()

    def _set_timer(self) -> None:
        if self._task is not None and not self._paused and not self.expired and self.seconds is not None:
            self._timer = self._loop.call_at(self._due, self.run_out)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def run_out(self) -> None:
        """End now what is done inside of it, as if the time were over."""
        self._stop_timer()
        if self._task is not None and not self.expired:
            self.expired = True
            self._task.cancel()


_clocks: ContextVar[tuple[Pausable, ...]] = ContextVar("turnsmith_clocks", default=())


def add_clock(clock: Pausable) -> None:
    """Let `waiting` stop one more clock, in the current context and in tasks that begin in it."""
    _clocks.set((*_clocks.get(), clock))


@contextmanager
def paused() -> Generator[None]:
    """Stop every clock of the current context inside of it: somebody else has the turn, which is no waiting."""
    clocks = _clocks.get()
    for clock in clocks:
        clock.pause()
    try:
        yield
    finally:
        for clock in clocks:
            clock.resume()


class Wait:
    """A wait for something scarce, from its construction to `end`: no clock of the current context runs meanwhile."""

    __slots__ = ("_began", "_bottleneck", "_clocks")

    def __init__(self, bottleneck: Bottleneck) -> None:
        self._bottleneck = bottleneck
        self._clocks = _clocks.get()
        self._began = time.monotonic()
        for clock in self._clocks:
            clock.pause(bottleneck)

    def end(self) -> None:
        """Let the clocks run again."""
        for clock in self._clocks:
            clock.resume(self._bottleneck)
        seconds = time.monotonic() - self._began
        if seconds >= _LONG_WAIT:
            _tell(self._bottleneck, seconds)

    def overload(self) -> Overloaded:
        """The error to raise after `OVERLOAD_SECONDS`."""
        return Overloaded(f"It waited {time.monotonic() - self._began:.0f} seconds for {self._bottleneck}.")


@asynccontextmanager
async def waiting(bottleneck: Bottleneck) -> AsyncGenerator[None]:
    """Wait inside of it for something scarce: no clock around it runs meanwhile.

    Raises:
        Overloaded: The wait took `OVERLOAD_SECONDS`.
    """
    wait, limit = Wait(bottleneck), asyncio.timeout(OVERLOAD_SECONDS)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise wait.overload() from None
    finally:
        wait.end()


_told_at: dict[Bottleneck, float] = {}


def _tell(bottleneck: Bottleneck, seconds: float) -> None:
    """Name a bottleneck in the log, once a minute, if work waited long for it."""
    now = time.monotonic()
    if now - _told_at.get(bottleneck, -_WARN_EVERY) >= _WARN_EVERY:
        _told_at[bottleneck] = now
        logger.warning(
            "Work waited %.0f s for %s. Waiting counts towards no time limit, but it makes the run slower: %s.",
            seconds,
            bottleneck.what,
            bottleneck.advice,
        )


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
