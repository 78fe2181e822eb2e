"""Time limits that count work alone: the time in which work waits its turn is added to every limit on it.

Whatever hands out a scarce thing (a thread, a sandbox, a place in a worker) waits for it inside `waiting`. That stops
the clocks around it, adds up the time by bottleneck, and says in the log which setting gives more of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Generator
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


class TimeLimit:
    """Calls `run_out` when work has gone on for as long as it may, without the time that it waited its turn.

    A pause only adds to what was waited: the timer stays set, and when it fires too early, it is set for what is left.
    """

    __slots__ = ("_due", "_loop", "_paused_at", "_pauses", "_timer", "waits")

    def __init__(self) -> None:
        self.waits: dict[Bottleneck, float] = {}
        """Seconds that it stood still because work waited its turn, by what the work waited for."""
        self._loop = asyncio.get_running_loop()
        self._due: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pauses = 0
        self._paused_at = 0.0

    def start(self, seconds: float | None) -> None:
        """Let `seconds` run from now, or from the end of a pause that goes on; None: without a limit."""
        self.stop()
        if seconds is not None:
            self._due = (self._paused_at if self._pauses else self._loop.time()) + seconds
            self._timer = self._loop.call_at(self._due, self._look)

    def stop(self) -> None:
        """Forget the limit."""
        self._due = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def pause(self, bottleneck: Bottleneck | None = None) -> None:
        """Stop it; time without a `bottleneck` does not count as waiting. Safe to call from another thread."""
        self.call_in_loop(self._pause)

    def resume(self, bottleneck: Bottleneck | None = None) -> None:
        """Let it run again."""
        self.call_in_loop(self._resume, bottleneck)

    def run_out(self) -> None:
        """End now what is limited, as if the time were over."""
        raise NotImplementedError

    def call_in_loop(self, function: Callable[..., None], *args: Any) -> None:
        """Call a function in the thread of the event loop: at once, if that is the caller's."""
        if _running_loop() is self._loop:
            function(*args)
            return
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the event loop was closed meanwhile: nobody waits any more
            pass

    def _pause(self) -> None:
        self._pauses += 1
        if self._pauses == 1:
            self._paused_at = self._loop.time()

    def _resume(self, bottleneck: Bottleneck | None) -> None:
        self._pauses -= 1
        if self._pauses:
            return
        stood = self._loop.time() - self._paused_at
        if bottleneck is not None:
            self.waits[bottleneck] = self.waits.get(bottleneck, 0.0) + stood
        if self._due is not None:
            self._due += stood
            if self._timer is None:  # it fired during the pause
                self._look()

    def _look(self) -> None:
        """Run out, or set the timer again for what is left."""
        self._timer = None
        if self._pauses or self._due is None:
            return
        if self._loop.time() >= self._due:
            self.run_out()
        else:
            self._timer = self._loop.call_at(self._due, self._look)


class Clock(TimeLimit):
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

    __slots__ = ("_cancels_before", "_task", "_token", "expired", "seconds")

    def __init__(self, seconds: float | None) -> None:
        super().__init__()
        self.seconds = seconds
        self.expired = False
        """Whether the time is over."""
        self._task: asyncio.Task[Any] | None = None

    @property
    def waited(self) -> float:
        """Seconds that it stood still because work waited its turn."""
        return sum(self.waits.values())

    async def __aenter__(self) -> Clock:
        self._task = asyncio.current_task()
        assert self._task is not None
        self._cancels_before = self._task.cancelling()
        self.start(self.seconds)
        self._token = _clocks.set((*_clocks.get(), self))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _clocks.reset(self._token)
        task, self._task = self._task, None
        assert task is not None
        self.stop()
        # As asyncio.timeout does: if somebody else has cancelled the task as well, it stays cancelled.
        if self.expired and task.uncancel() <= self._cancels_before and kind is asyncio.CancelledError:
            raise OutOfTime(f"it took longer than {self.seconds:g} seconds") from error

    def run_out(self) -> None:
        """End now what is done inside of it, as if the time were over."""
        self.stop()
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
