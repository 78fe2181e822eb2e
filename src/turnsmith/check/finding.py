"""What a check is, and what it finds."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from turnsmith.errors import ConfigError, TurnsmithError
from turnsmith.trajectory import Trajectory

Status = Literal["passed", "warning", "failed", "skipped"]


class Skipped(Exception):
    """Raised by a check that cannot be made, with the reason."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What shows a finding about a reward."""

    actions: tuple[str, ...]
    """The shortest that show it, one for each turn."""
    seed: int
    earned: float
    right: float | None
    """What a right answer earns."""
    line: str
    """The line of the user's code that decides, as `file:line: code`; empty if it is not known."""
    test: str
    """A test that fails as long as it is so."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check saw.

    Example:
        >>> Finding("failed", "8 of 8 starts differ", fix="Use the seed that `reset` gets.").status
        'failed'
    """

    status: Status
    saw: str
    """What was measured, or why the check was skipped, in one sentence."""
    fix: str = ""
    """What to do about it; empty if it passed."""
    episodes: Sequence[Trajectory] = ()
    """The episodes that show it."""
    shown: Shown | None = None
    """What shows a finding about a reward."""

    @classmethod
    def of_error(cls, error: Exception) -> Finding:
        """The finding of a check that could not be run."""
        if isinstance(error, TurnsmithError):
            return cls("failed", str(error), "See the message: the check could not be run.")
        where = traceback.extract_tb(error.__traceback__)[-1]
        saw = f"The check itself broke: {type(error).__name__}: {error} (line {where.lineno} of {where.filename})."
        return cls("failed", saw, "Please report this.")


@dataclass(frozen=True, slots=True)
class Check:
    """One question that is asked before a run."""

    code: str
    """Names the check on the command line and for programs, as in `--only same-opening`."""
    name: str
    """A few words for people."""
    why: str
    """What it prevents, in one sentence, with the kind of loss."""
    ran: str = ""
    """What it runs, in one sentence; empty where the name says so."""
    audit: bool = False
    """Whether it is about the reward: then what failed is proven, and a warning is for a person's judgment."""


@dataclass(frozen=True, slots=True)
class Result:
    """A check, what it found, and how long it took."""

    check: Check
    finding: Finding
    seconds: float


def run_check(check: Check, look: Callable[[], Finding]) -> Result:
    """Run one check. A check that raises has failed."""
    began = time.perf_counter()
    try:
        finding = look()
    except Exception as error:  # noqa: BLE001  (a check that breaks is a failed check)
        finding = Finding.of_error(error)
    return Result(check, finding, time.perf_counter() - began)


def check_codes(codes: Sequence[str], checks: Sequence[Check]) -> None:
    """Raise a ConfigError if a code is not that of a check."""
    known = [check.code for check in checks]
    for code in codes:
        if code not in known:
            raise ConfigError(f"There is no check {code!r}: choose from {', '.join(known)}.")
