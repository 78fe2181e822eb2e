"""A turn of an agent episode, its history and prompt, and the sequence to train on that it is part of."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from turnsmith.gateway.request import ChatMessage
from turnsmith.inference.engine import Generation
from turnsmith.trajectory import TokenBuffer

MessageKey = tuple[Any, ...]
"""`ChatMessage.key`."""


class Continuation(StrEnum):
    """How a request's prompt came about.

    Example:
        >>> Continuation.BRIDGED.value
        'bridged'
    """

    OPENED = "opened"
    """A new conversation, or one under another system prompt or with other tools, without turns of the model."""
    BRIDGED = "bridged"
    """New messages after a turn of the model: no token of the history was made again."""
    SPLICED = "spliced"
    """A rewritten history; the model's turns in it are those that it sampled, token for token."""
    EDITED = "edited"
    """A history with an assistant message that the model did not write."""


@dataclass(slots=True, eq=False)
class SampledTurn:
    """One turn of the model, and the tokens between it and the turn that it follows."""

    number: int
    """Place in the order of sampling."""
    parent: SampledTurn | None
    context: array[int]
    """Tokens after the parent's turn, up to this one; without a parent, the whole prompt."""
    prompt_length: int
    """Without a parent: how many tokens of the context come before the first assistant message."""
    ids: array[int]
    """Its sampled tokens."""
    generation: Generation
    reply: ChatMessage
    """What the agent was handed out."""
    messages: tuple[ChatMessage, ...]
    """What was new in the request."""
    continuation: Continuation
    history: History
    """The history that ends with it."""
    path: array[int] | None = None
    """All tokens up to its end, as long as no turn follows it."""
    is_delivered: bool = False
    """Whether the agent has received it. A turn that it never saw is not trained on."""


@dataclass(slots=True, eq=False)
class History:
    """A history that an agent has sent or can send, in a tree: what follows it leads to longer ones."""

    longer: dict[MessageKey, History] = field(default_factory=dict[MessageKey, "History"])
    """By the message that follows."""
    answers: dict[MessageKey, list[SampledTurn]] = field(default_factory=dict[MessageKey, list[SampledTurn]])
    """The model's turns that follow, by what was handed out for them; the same text may be sampled twice."""
    length: int = 0
    """How many messages it has."""
    tools: bytes = b""
    """With these it began; only of one without messages."""


@dataclass(slots=True)
class Prompt:
    """The tokens for the next turn, and where they continue."""

    parent: SampledTurn | None
    context: array[int]
    prompt_length: int
    messages: tuple[ChatMessage, ...]
    continuation: Continuation
    history: History
    """The history that it continues."""
    ids: array[int] = field(default_factory=lambda: array("i"))
    """All tokens of the path, for the engine."""

    @property
    def opening_length(self) -> int:
        """How many tokens come before the first assistant message."""
        turn = self.parent
        while turn is not None and turn.parent is not None:
            turn = turn.parent
        return self.prompt_length if turn is None else turn.prompt_length


@dataclass(slots=True)
class Segment:
    """One path through the forest, as a sequence to train on."""

    tokens: TokenBuffer
    """The mask is 1 on the turns that are trained in this segment; those of an earlier one are context here."""
    spans: list[tuple[SampledTurn, int, int]]
    """The trained turns, each with its first token and one past its last."""
