"""The parts of a rehearsal with their outcomes, as lines of a terminal, as JSON and as a text file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Any

from turnsmith import __version__
from turnsmith.check.finding import Finding
from turnsmith.text import duration, wrapped

_WORDS = {"passed": "ok", "warning": "WARNING", "failed": "FAILED", "skipped": "-"}
_INDENT, _WIDTH, _NAME = 8, 120, 32


@dataclass(frozen=True)
class RehearsedPart:
    """One part of a rehearsal.

    Example:
        >>> print(*RehearsedPart("full layout", Finding("passed", "32 ranks."), 12.3).lines(), sep="\\n")
        ok      full layout                       12.3 s  32 ranks.
    """

    name: str
    finding: Finding
    seconds: float

    def lines(self) -> list[str]:
        """A row of the table; if something is wrong, with what to do and the episodes that show it."""
        finding = self.finding
        head = f"{_WORDS[finding.status]:<{_INDENT}}{self.name:<{_NAME}} {self.seconds:5.1f} s"
        short = f"{head}  {finding.saw}"
        if finding.status in ("passed", "skipped") and len(short) <= _WIDTH:
            return [short]
        episodes = ", ".join(dict.fromkeys(one.episode_id for one in finding.episodes))
        texts = {"": finding.saw, "what to do: ": finding.fix, "episodes: ": episodes}
        return [head, *(line for label, text in texts.items() if text for line in _indented(label + text))]

    def as_dict(self) -> dict[str, Any]:
        """In plain values."""
        finding = self.finding
        return {
            "name": self.name,
            "status": finding.status,
            "seconds": round(self.seconds, 2),
            "saw": finding.saw,
            "fix": finding.fix,
            "episodes": [one.episode_id for one in finding.episodes],
        }


@dataclass
class RehearsalResult:
    """What was rehearsed, what could not be, and what was measured."""

    run: str
    """What will be queued, in a line."""
    parts: list[RehearsedPart] = field(default_factory=list[RehearsedPart])
    not_executed: Mapping[str, str] = field(default_factory=dict[str, str])
    changed: Mapping[str, tuple[Any, Any]] = field(default_factory=dict[str, tuple[Any, Any]])
    measured: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def failed(self) -> int:
        """How many parts failed."""
        return sum(part.finding.status == "failed" for part in self.parts)

    def as_dict(self) -> dict[str, Any]:
        """For `rehearsal.json`."""
        return {
            "turnsmith": __version__,
            "run": self.run,
            "failed": self.failed,
            "parts": [part.as_dict() for part in self.parts],
            "not_executed": dict(self.not_executed),
            "changed": {name: {"run": old, "rehearsed": new} for name, (old, new) in self.changed.items()},
            "measured": dict(self.measured),
        }

    def ending(self) -> list[str]:
        """What follows the table."""
        lines = ["", "not executed:", *_table(self.not_executed.items())] if self.not_executed else []
        if self.changed:
            shown = ((name, f"{old} -> {new}") for name, (old, new) in self.changed.items())
            lines += ["", "settings that were changed to fit this machine:", *_table(shown)]
        if self.measured.get("steps"):
            lines += ["", "measured:", *_steps_table(self.measured["steps"])]
        counts = Counter(part.finding.status for part in self.parts)
        last = f"{counts['failed']} failed, {counts['skipped']} skipped"
        seconds = duration(sum(part.seconds for part in self.parts))
        return [*lines, "", f"{counts['passed']} passed, {counts['warning']} warnings, {last}, in {seconds}"]

    def text(self) -> str:
        """For `rehearsal.txt`: all of it."""
        rows = [line for part in self.parts for line in part.lines()]
        return "\n".join([self.run, *rows, *self.ending()]) + "\n"


def _indented(text: str) -> list[str]:
    return [" " * _INDENT + line for line in wrapped(text, _WIDTH - _INDENT)]


def _table(rows: Any) -> list[str]:
    listed = [(str(name), str(text)) for name, text in rows]
    width = max(len(name) for name, _ in listed)
    return [f"  {name:<{width}}  {text}" for name, text in listed]


def _steps_table(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    shown = {
        "step": "step",
        "time/step": "seconds",
        "time/generate": "generate",
        "time/update_actor": "update",
        "tokens/prompt": "prompt tokens",
        "tokens/response": "response tokens",
    }
    lines = ["  " + "  ".join(f"{label:>15}" for label in shown.values())]
    return lines + ["  " + "  ".join(f"{step.get(name, nan):>15.4g}" for name in shown) for step in steps]
