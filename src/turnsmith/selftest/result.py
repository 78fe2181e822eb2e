"""What a check of the selftest returns or raises, and the table of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["passed", "failed", "skipped"]
_NAME_WIDTH = 27


class CheckFailed(Exception):
    """The check found something wrong; the message says what, and what to do."""


class CheckSkipped(Exception):
    """The check does not apply here; the message says why."""


@dataclass(frozen=True)
class SelftestCheck:
    """The outcome of one check.

    Example:
        >>> print(SelftestCheck("weights reach the engine", "passed", 4.2, "log-probs moved by 1.3").line())
        ok      weights reach the engine      4.2 s  log-probs moved by 1.3
    """

    name: str
    status: Status
    seconds: float
    text: str
    """The figures, or a sentence that says what is wrong or why it was skipped."""

    def line(self) -> str:
        """One row of the table."""
        word = {"passed": "ok", "failed": "FAILED", "skipped": "-"}[self.status]
        return f"{word:<7} {self.name:<{_NAME_WIDTH}} {self.seconds:5.1f} s  {self.text}"


@dataclass(frozen=True)
class SelftestResult:
    """All results of a selftest, and what it ran on."""

    machine: dict[str, Any]
    settings: dict[str, Any]
    checks: Sequence[SelftestCheck]

    @property
    def failed(self) -> int:
        """How many checks failed."""
        return sum(check.status == "failed" for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """For a JSON file that a user can attach to an issue."""
        return asdict(self) | {"failed": self.failed}

    def summary(self) -> str:
        """The last line of the table."""
        seconds = sum(check.seconds for check in self.checks)
        passed, skipped = (sum(check.status == status for check in self.checks) for status in ("passed", "skipped"))
        return f"{passed} passed, {self.failed} failed, {skipped} skipped, in {seconds:.0f} s"
