"""The base class of the checks of a run's history, and their violations."""

from __future__ import annotations

from dataclasses import dataclass

from turnsmith.verify.history import RunHistory, StepHistory


@dataclass(frozen=True)
class Violation:
    """Two records of a run that contradict each other."""

    sentence: str
    step: int | None = None
    """None if it concerns the whole run."""

    def __str__(self) -> str:
        return self.sentence if self.step is None else f"step {self.step}: {self.sentence}"


class HistoryCheck:
    """One kind of check. `verify_run` calls `check_step` for each step in order, then `check_run`."""

    name = ""

    def __init__(self, history: RunHistory) -> None:
        self.history = history
        self.violations: list[Violation] = []
        self.not_recorded = ""
        """Why this could not be checked; empty if it was."""
        self.unsigned = ""
        """What is complete, but may have been changed, because this user's key did not sign it."""

    def check_step(self, step: StepHistory) -> None:
        """Check one step."""

    def check_run(self) -> None:
        """Check the whole run, after its last step."""

    def summary(self) -> str:
        """What was checked, in a few words; only used if there are no violations."""
        return ""

    def require(self, holds: bool, sentence: str, step: int | None = None) -> None:
        """Record a violation unless `holds`."""
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
