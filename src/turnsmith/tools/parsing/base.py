"""The parser interface, what a parser returns (the text, the tool calls, and the first format problem), and the parser
of environments without tools.

A parser never raises, whatever the completion, and takes time linear in its length. A mistake of the model is a
`FormatProblem`: a value with a sentence that tells the model how to write the call.
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

MAX_CHARS = 1 << 20
"""Longer completions are not parsed at all."""
MAX_CALLS = 64
"""Most calls in one turn; further ones are a problem of kind `TOO_MANY_CALLS`."""
MAX_ATTEMPTS = 256
"""Most places in one text where a parser tries to read a call, so that a text full of brackets costs little."""
PLAIN_INPUT = "input"
"""The name of the argument that holds plain text, where the model wrote no named arguments."""
THINK_START, THINK_END = "<think>", "</think>"


class ProblemKind(StrEnum):
    """Kinds of format problems, by which they are counted.

    Example:
        >>> ProblemKind("invalid_json") is ProblemKind.INVALID_JSON
        True
    """

    INVALID_JSON = "invalid_json"
    UNFINISHED = "unfinished"
    """The completion ends in the middle of a call or of the reasoning."""
    MISSING_NAME = "missing_name"
    BAD_ARGUMENTS = "bad_arguments"
    """The arguments are missing or not a JSON object."""
    NUMBER_TOO_LARGE = "number_too_large"
    TOO_DEEP = "too_deep"
    TOO_LARGE = "too_large"
    TOO_MANY_CALLS = "too_many_calls"
    INVENTED_OBSERVATION = "invented_observation"
    """The model wrote an observation itself instead of waiting for it."""


@dataclass(frozen=True, slots=True)
class FormatProblem:
    """A mistake in the format of a completion.

    Example:
        >>> FormatProblem(ProblemKind.MISSING_NAME, "The call does not name a tool.").kind
        <ProblemKind.MISSING_NAME: 'missing_name'>
    """

    kind: ProblemKind
    sentence: str
    """Shown to the model: what was wrong and how to write it."""


@dataclass(slots=True)
class ParsedAction:
    """One parsed completion.

    Calls that could be read are included even when another part of the completion has a problem.

    Example:
        >>> ParsedAction("Let me look.", [ToolCall("search", {"query": "rain"})]).calls[0].name
        'search'
    """

    text: str = ""
    """The completion without its calls and its reasoning."""
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    problem: FormatProblem | None = None
    """The first format problem, if any."""


class ActionParser(ABC):
    """Extracts tool calls from completions. Parsers are stateless, so one can serve any number of episodes.

    Args:
        max_chars: Longer completions are not parsed; they are a problem of kind `TOO_LARGE`.

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
    """Whether it parses the model family's own format, for which the chat template itself has instructions."""

    def __init__(self, *, max_chars: int = MAX_CHARS) -> None:
        self.max_chars = max_chars

    @abstractmethod
    def parse(self, text: str) -> ParsedAction:
        """Parse one completion. Never raises."""

    @abstractmethod
    def instructions(self, definitions: Sequence[ToolDefinition]) -> str:
        """The part of the system prompt that lists the tools and shows how to call them."""

    def write(self, call: ToolCall) -> str:
        """The call as a model would write it, so that `parse` reads it back; for the solutions of `turnsmith check`."""
        raise NotImplementedError(
            f"{type(self).__name__} cannot write the call to `{call.name}` in the environment's solution: give it a "
            "method `write(call)` that returns what `parse` reads."
        )


class TextParser(ActionParser):
    """Base class of parsers of text, which skip the reasoning. Subclasses implement `_parse_answer`."""

    def parse(self, text: str) -> ParsedAction:
        """Parse one completion. Never raises."""
        if len(text) > self.max_chars:
            return too_large(len(text), self.max_chars)
        text = replace_surrogates(text)
        start = answer_start(text)
        return unfinished_reasoning() if start < 0 else self._parse_answer(text, start)

    @abstractmethod
    def _parse_answer(self, text: str, start: int) -> ParsedAction:
        """Parse the text from `start` on; it is within the limit and has no lone surrogates."""


def too_large(length: int, limit: int) -> ParsedAction:
    """The result for a completion that is too long to be parsed."""
    sentence = f"The answer has {length:,} characters; at most {limit:,} are read, so nothing was done. Be shorter."
    return ParsedAction(problem=FormatProblem(ProblemKind.TOO_LARGE, sentence))


def answer_start(text: str) -> int:
    """Where the reasoning ends and the answer starts; -1 if the reasoning never ends. Calls in it do not count.

    The opening `<think>` may be missing: some chat templates write it for the model.
    """
    end = text.find(THINK_END)
    if end >= 0:
        return end + len(THINK_END)
    return -1 if text.lstrip().startswith(THINK_START) else 0


def unfinished_reasoning() -> ParsedAction:
    """The result for a completion that is all reasoning."""
    sentence = f"The thinking was not ended with {THINK_END}, so nothing was done. Think shorter, then answer."
    return ParsedAction(problem=FormatProblem(ProblemKind.UNFINISHED, sentence))


class PlainTextParser(ActionParser):
    """Returns the text as it is, without calls, whatever it looks like.

    Example:
        >>> PlainTextParser().parse("move north")
        ParsedAction(text='move north', calls=[], problem=None)
    """

    def parse(self, text: str) -> ParsedAction:
        """Return the text. Never raises."""
        if len(text) > self.max_chars:
            return too_large(len(text), self.max_chars)
        return ParsedAction(replace_surrogates(text))

    def instructions(self, definitions: Sequence[ToolDefinition]) -> str:
        """Empty: there is no format to show."""
        return ""
