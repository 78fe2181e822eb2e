"""Forces calls of several environments to overlap: each line of one call runs between two lines of the others.

Two calls at the same time overlap by chance, and rarely at the line that changes the state they share. So a trace
function holds each thread at every line of the environment's code until it is that thread's turn. A thread that does
not reach its next line, because it sleeps or waits for a lock, is left out until it does.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import sysconfig
import threading
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import turnsmith
from turnsmith.concurrency.generators import Generators, drawn_from
from turnsmith.config import EnvironmentConfig
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.importing import import_name

_BEGIN_SECONDS = 0.1
"""How long a call waits for those of the others to begin."""
_LINE_SECONDS = 0.02
"""How long a line waits for those of the others."""
_VISITS, _MOST_LINES = 2, 200
"""How often a line is held in a call, and how many lines are: a loop need not be held in every round."""


@dataclass(frozen=True, eq=False)
class Lockstep:
    """A factory of environments whose plain methods are called in lockstep, where each has a thread of its own.

    Example:
        >>> game = "turnsmith.env.examples:GuessNumber"
        >>> type(EnvironmentSpec(Lockstep(game, 2)).build()).__name__
        'GuessNumber'
    """

    target: Any
    """The environment's class or factory, or its name."""
    count: int
    """How many environments are played at the same time."""
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    """The name of their meeting; in a worker process each environment has a copy of this object."""

    @classmethod
    def of(cls, spec: EnvironmentSpec, count: int) -> EnvironmentSpec:
        """The spec of the same environments in lockstep."""
        named = None if getattr(spec.target, "__module__", "") == "__main__" else import_name(spec.target)
        return EnvironmentSpec(cls(named or spec.target, count), spec.config, spec.isolation)

    def __call__(self, config: EnvironmentConfig) -> Any:
        """Build the environment. From now on its calls in this thread run in lockstep."""
        mine = drawn_from()
        if mine is not None and asyncio._get_running_loop() is None:  # pyright: ignore[reportPrivateUsage]
            sys.settrace(_Tracer(_meeting(self.name, self.count), mine))
        return EnvironmentSpec(self.target, config).build()

    @property
    def __name__(self) -> str:
        return EnvironmentSpec(self.target).name

    def __reduce__(self) -> Any:
        return Lockstep, (self.target, self.count, self.name)


class _Meeting:
    """Threads wait for each other here: of those in a call, the one that has run the fewest lines goes on."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._lines: dict[Any, int] = {}
        self._away: set[Any] = set()
        """The threads that did not reach their next line in time."""
        self._changed = threading.Condition()

    def begin(self, me: Any) -> None:
        with self._changed:
            self._lines[me] = 0
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(self._lines) >= self._count, _BEGIN_SECONDS)

    def come_to_line(self, me: Any) -> None:
        with self._changed:
            self._lines[me] = max(self._lines.values()) if me in self._away else self._lines[me] + 1
            self._away.discard(me)
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: not self._before(me), _LINE_SECONDS):
                self._away.update(self._before(me))

    def end(self, me: Any) -> None:
        with self._changed:
            del self._lines[me]
            self._away.discard(me)
            self._changed.notify_all()

    def _before(self, me: Any) -> list[Any]:
        mine = self._lines[me], me
        return [one for one, lines in self._lines.items() if (lines, one) < mine and one not in self._away]


@cache
def _meeting(name: str, count: int) -> _Meeting:
    return _Meeting(count)


class _Tracer:
    """The trace function of an environment's thread."""

    def __init__(self, meeting: _Meeting, mine: Generators) -> None:
        self._meeting = meeting
        self._mine = mine
        self._me = mine.seed, threading.get_ident()
        self._depth = 0
        self._visits: Counter[tuple[CodeType, int]] = Counter()

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not _is_theirs(frame.f_code.co_filename):
            return None
        if not self._depth and drawn_from() is not self._mine:
            sys.settrace(None)  # the thread has another environment now
            return None
        if not self._depth:
            self._visits.clear()
            self._meeting.begin(self._me)
        self._depth += 1
        return self._in_frame

    def _in_frame(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "return":
            self._depth -= 1
            if not self._depth:
                self._meeting.end(self._me)
        elif event == "line":
            place = frame.f_code, frame.f_lineno
            self._visits[place] += 1
            frame.f_trace_lines = self._visits[place] < _MOST_LINES
            if self._visits[place] <= _VISITS and len(self._visits) <= _MOST_LINES:
                self._meeting.come_to_line(self._me)
        return self._in_frame


_OURS = str(Path(turnsmith.__file__).parent) + os.sep
_STANDARD = sysconfig.get_path("stdlib") + os.sep


@cache
def _is_theirs(file: str) -> bool:
    """Whether code is neither turnsmith's nor the standard library's."""
    is_standard = file.startswith(_STANDARD) and f"{os.sep}site-packages{os.sep}" not in file
    return not (is_standard or file.startswith(("<frozen", "<string>", _OURS)))
