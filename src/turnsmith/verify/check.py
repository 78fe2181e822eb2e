"""What every check of a run's history has: violations, and what it looked at."""

from __future__ import annotations

from dataclasses import dataclass

from turnsmith.verify.history import RunHistory, StepHistory


@dataclass(frozen=True)
class Violation:
    """Two records of a run that contradict each other."""

    sentence: str
    step: int | None = None
    """None: of the run as a whole."""

    def __str__(self) -> str:
        return self.sentence if self.step is None else f"step {self.step}: {self.sentence}"


class HistoryCheck:
    """One kind of check. `verify_run` calls `see` for each step in order, and `finish` at the end."""

    name = ""

    def __init__(self, history: RunHistory) -> None:
        self.history = history
        self.violations: list[Violation] = []
        self.not_recorded = ""
        """Why this could not be checked; empty if it was."""
        self.unsigned = ""
        """What was found whole, but is not signed with this user's key, so that it may have been changed."""

    def see(self, step: StepHistory) -> None:
        """Look at one step."""

    def finish(self) -> None:
        """Look at the run as a whole, after its last step."""

    def proved(self) -> str:
        """What was looked at, in a few words; asked for only if nothing is violated."""
        return ""

    def require(self, holds: bool, sentence: str, step: int | None = None) -> None:
        """Note a violation unless something holds."""
        if not holds:
            self.violations.append(Violation(sentence, step))


def listed(names: list[str], most: int = 3) -> str:
    """The first few names.

    Example:
        >>> listed(["a", "b", "c", "d"])
        'a, b, c and 1 more'
    """
    names = sorted(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def counted(number: int, noun: str) -> str:
    """A number of things.

    Example:
        >>> counted(1, "step"), counted(2000, "step")
        ('1 step', '2,000 steps')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
