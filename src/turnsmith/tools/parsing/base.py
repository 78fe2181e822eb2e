"""What every parser gives back: the model's words, the calls it made, and what was wrong with the form of it.

A parser never raises, whatever the model said, and its time grows in step with the length of the text. What a model
gets wrong is a `FormatProblem`: a value with a sentence that tells the model how to do better next turn.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from turnsmith.text import replace_surrogates
from turnsmith.tools.definition import ToolCall

if TYPE_CHECKING:
    from turnsmith.tools.definition import ToolDefinition

__all__ = ["MAX_CALLS", "MAX_CHARS", "PLAIN_INPUT", "ActionParser", "FormatProblem", "ParsedAction", "ProblemKind"]

MAX_CHARS = 1 << 20
"""Longer texts are not read at all."""
MAX_CALLS = 64
"""Calls read out of one turn; the rest is a problem of kind `TOO_MANY_CALLS`."""
MAX_ATTEMPTS = 256
"""Places in one text where a call is looked for: text full of opening brackets is given up on, not worked through."""
PLAIN_INPUT = "input"
"""The argument that holds a call's input when the model gave plain text instead of named arguments."""
THINKING, AFTER_THINKING = "<think>", "</think>"


class ProblemKind(StrEnum):
    """What was wrong with the form of a turn; problems are counted by it.

    Example:
        >>> ProblemKind("invalid_json") is ProblemKind.INVALID_JSON
        True
    """

    INVALID_JSON = "invalid_json"
    UNFINISHED = "unfinished"
    """The text ends in the middle of a call or of the model's thinking."""
    MISSING_NAME = "missing_name"
    BAD_ARGUMENTS = "bad_arguments"
    """The arguments are missing or not a JSON object."""
    NUMBER_TOO_LARGE = "number_too_large"
    TOO_DEEP = "too_deep"
    TOO_LARGE = "too_large"
    TOO_MANY_CALLS = "too_many_calls"
    INVENTED_OBSERVATION = "invented_observation"
    """The model wrote an observation itself instead of waiting for one."""


@dataclass(frozen=True, slots=True)
class FormatProblem:
    """Something wrong with the form of what the model said.

    Example:
        >>> FormatProblem(ProblemKind.MISSING_NAME, "The call does not name a tool.").kind
        <ProblemKind.MISSING_NAME: 'missing_name'>
    """

    kind: ProblemKind
    sentence: str
    """Told to the model: what was wrong and how to write it."""


@dataclass(slots=True)
class ParsedAction:
    """One turn of the model, read.

    Calls that could be read are there even when another part of the turn has a problem.

    Example:
        >>> ParsedAction("Let me look.", [ToolCall("search", {"query": "rain"})]).calls[0].name
        'search'
    """

    text: str = ""
    """What the model said outside its calls."""
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    problem: FormatProblem | None = None
    """The first thing wrong with the form, if any."""


class ActionParser(ABC):
    """Reads tool calls out of what the model said, and teaches the model the format. Has no state; share it freely.

    Args:
        max_chars: Longer texts are not read; they come back as a problem of kind `TOO_LARGE`.

    Example:
        >>> class Shout(ActionParser):
        ...     def parse(self, text):
        ...         return ParsedAction(text.upper())
        ...
        ...     def instructions(self, definitions):
        ...         return "Say something."
        >>> Shout().parse("hello").text
        'HELLO'
    """

    is_native = False
    """Whether it reads the model family's own format, which the chat template itself teaches the model."""

    def __init__(self, *, max_chars: int = MAX_CHARS) -> None:
        self.max_chars = max_chars

    @abstractmethod
    def parse(self, text: str) -> ParsedAction:
        """Read one turn of the model. Never raises."""

    @abstractmethod
    def instructions(self, definitions: Sequence[ToolDefinition]) -> str:
        """What the system prompt says about the tools and how to call them."""


class TextParser(ActionParser):
    """A parser of plain text, which reads what the model said after its thinking. Subclasses give `_read_answer`."""

    def parse(self, text: str) -> ParsedAction:
        """Read the calls. Never raises."""
        if len(text) > self.max_chars:
            return too_large(len(text), self.max_chars)
        text = replace_surrogates(text)
        start = thinking_end(text)
        return unfinished_thinking() if start < 0 else self._read_answer(text, start)

    @abstractmethod
    def _read_answer(self, text: str, start: int) -> ParsedAction:
        """Read the text from `start` on; it is within the limit and has no halves of characters."""


def too_large(length: int, limit: int) -> ParsedAction:
    """The answer to a text that is not read because of its length."""
    sentence = f"The answer has {length:,} characters; at most {limit:,} are read, so nothing was done. Be shorter."
    return ParsedAction(problem=FormatProblem(ProblemKind.TOO_LARGE, sentence))


def thinking_end(text: str) -> int:
    """Where the model's thinking ends and its answer starts; -1 if it never ends. A call in the thinking is a draft.

    The opening `<think>` may be missing: some chat templates write it for the model.
    """
    end = text.find(AFTER_THINKING)
    if end >= 0:
        return end + len(AFTER_THINKING)
    opened = text.find(THINKING, 0, 24)
    return -1 if opened >= 0 and not text[:opened].strip() else 0


def unfinished_thinking() -> ParsedAction:
    """The answer to a text that is all thinking."""
    sentence = f"The thinking was not ended with {AFTER_THINKING}, so nothing was done. Think shorter, then answer."
    return ParsedAction(problem=FormatProblem(ProblemKind.UNFINISHED, sentence))
