"""Warnings of a run, in words: what was noticed at which step, why it matters, what to do, which episodes to look at.

They stand in events.jsonl under the kind `warning`: once when they begin, and once more, with `until`, when they end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

KIND = "warning"
"""The kind of event that a warning is."""


@dataclass(frozen=True, slots=True)
class RunWarning:
    """One thing that a person should look at.

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
    """What kind of warning it is, such as `zero_gradient`."""
    step: int
    """The step at which it began."""
    what: str
    """What was seen, in a sentence with its numbers."""
    why: str
    """Why it matters."""
    advice: str
    """What to do about it."""
    episodes: tuple[str, ...] = ()
    """A few episodes of that step that show it."""
    until: int | None = None
    """The first step that was free of it again; None: it is not over."""

    def ended(self, step: int) -> RunWarning:
        """The same warning, over since `step`."""
        return replace(self, until=step)

    def content(self) -> dict[str, Any]:
        """What goes into the event."""
        return asdict(self)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> RunWarning:
        """The warning of an event's content; fields that this version does not know are left out."""
        known: dict[str, Any] = {field.name: content[field.name] for field in fields(cls) if field.name in content}
        known["episodes"] = tuple(known.get("episodes") or ())
        return cls(**known)

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
    """The warnings among a run's events, oldest first; each once, with its end if it has one.

    Example:
        >>> begun = RunWarning("zero_gradient", 3, "Zero.", "Why.", "Do.")
        >>> events = [{"kind": KIND, "content": one.content()} for one in (begun, begun.ended(9))]
        >>> [(warning.step, warning.until) for warning in warnings_in(events)]
        [(3, 9)]
    """
    found: dict[tuple[str, int], RunWarning] = {}
    for event in events:
        if event.get("kind") == KIND:
            content = event.get("content")
            warning = RunWarning.of(content) if isinstance(content, Mapping) else _sentence(str(content))
            found[warning.name, warning.step] = warning
        elif event.get("kind") == "resumed" and isinstance(event.get("step"), int):
            found = _until_step(found, event["step"])
    return list(found.values())


def _sentence(text: str) -> RunWarning:
    """A warning that is one sentence and belongs to no step, such as one about a file."""
    return RunWarning(text, 0, text, "", "")


def _until_step(found: dict[tuple[str, int], RunWarning], step: int) -> dict[tuple[str, int], RunWarning]:
    """What was known after `step`: a run that goes on from there has forgotten what came later."""
    kept = {key: warning for key, warning in found.items() if warning.step <= step}
    return {
        key: replace(warning, until=None) if warning.until is not None and warning.until > step else warning
        for key, warning in kept.items()
    }
