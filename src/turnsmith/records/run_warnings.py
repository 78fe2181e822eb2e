"""Warnings of a run: what was observed at which step, why it matters, what to do, and which episodes to look at.

They are events of kind `warning` in events.jsonl: written once when they begin, and again, with `until`, when they end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec

from turnsmith.errors import RecordError
from turnsmith.records.run_state import EventKind

"""The event kind of warnings."""


@dataclass(frozen=True, slots=True)
class RunWarning:
    """Something about a run that a person should look at.

    Example:
        >>> warning = RunWarning("zero_gradient", 3, "The gradient is zero.", "Nothing is learnt.", "Look.", ("e1",))
        >>> print(warning)
        warning at step 3: The gradient is zero.
          why it matters: Nothing is learnt.
          what to do: Look.
          episodes to look at: e1
        >>> print(warning.ended(9))
        over at step 9: zero gradient (warning of step 3)
    """

    name: str
    """The kind of warning, such as `zero_gradient`."""
    step: int
    """The step at which it began."""
    what: str
    """What was observed, in a sentence with its numbers."""
    why: str
    """Why it matters."""
    advice: str
    """What to do about it."""
    episodes: tuple[str, ...] = ()
    """A few episodes of that step that show it."""
    until: int | None = None
    """The first step without it again; None while it lasts."""

    def ended(self, step: int) -> RunWarning:
        """The same warning, ended at `step`."""
        return replace(self, until=step)

    def content(self) -> dict[str, Any]:
        """The content of the event."""
        return asdict(self)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> RunWarning:
        """The warning with this event content; unknown fields, as of a newer version, are ignored.

        Raises:
            RecordError: A field is missing or has the wrong type.
        """
        try:
            return msgspec.convert(content, cls)
        except (msgspec.ValidationError, RecursionError) as error:
            raise RecordError(f"A warning in events.jsonl is damaged: {error}.") from None

    def __str__(self) -> str:
        if self.until is not None:
            return f"over at step {self.until}: {self.name.replace('_', ' ')} (warning of step {self.step})"
        parts = {
            f"warning{f' at step {self.step}' if self.step else ''}": self.what,
            "  why it matters": self.why,
            "  what to do": self.advice,
            "  episodes to look at": ", ".join(self.episodes),
        }
        return "\n".join(f"{label}: {text}" for label, text in parts.items() if text)


def warnings_in(events: Iterable[Mapping[str, Any]]) -> list[RunWarning]:
    """The warnings among a run's events, oldest first, each once, with its end if it has ended.

    Example:
        >>> begun = RunWarning("zero_gradient", 3, "Zero.", "Why.", "Do.")
        >>> events = [{"kind": EventKind.WARNING, "content": warning.content()} for warning in (begun, begun.ended(9))]
        >>> [(warning.step, warning.until) for warning in warnings_in(events)]
        [(3, 9)]
    """
    warnings: dict[tuple[str, int], RunWarning] = {}
    for event in events:
        if event.get("kind") == EventKind.WARNING:
            content = event.get("content")
            # A warning that belongs to no step, such as one about a file, is a plain sentence.
            warning = RunWarning.of(content) if isinstance(content, Mapping) else _of_sentence(str(content))
            warnings[warning.name, warning.step] = warning
        elif event.get("kind") == EventKind.RESUMED and isinstance(event.get("step"), int):
            warnings = _rewound(warnings, event["step"])
    return list(warnings.values())


def _of_sentence(text: str) -> RunWarning:
    return RunWarning(text, 0, text, "", "")


def _rewound(warnings: dict[tuple[str, int], RunWarning], step: int) -> dict[tuple[str, int], RunWarning]:
    """The warnings as they were after `step`, from which the run resumes."""
    return {
        key: replace(warning, until=None) if warning.until is not None and warning.until > step else warning
        for key, warning in warnings.items()
        if warning.step <= step
    }
