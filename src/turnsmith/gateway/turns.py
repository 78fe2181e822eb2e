"""A turn of an agent episode, its history and prompt, and the sequence in which it is trained; and what the HTTP server
needs of an episode.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from turnsmith.gateway.request import ChatMessage, ContextTooLong, ModelReply, ModelRequest, Refusal
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
    """A history without turns of the model: a new conversation, or another system prompt or other tools."""
    BRIDGED = "bridged"
    """New messages after a turn of the model; the history was not tokenised again."""
    SPLICED = "spliced"
    """A rewritten history, in which the model's turns keep their sampled tokens."""
    EDITED = "edited"
    """A history with an assistant message that the model did not write."""


@dataclass(slots=True, eq=False)
class SampledTurn:
    """One turn of the model, and the tokens between it and the turn that it follows."""

    number: int
    """Its position in the order of sampling."""
    parent: SampledTurn | None
    context: array[int]
    """Tokens after the parent's turn, up to this one; without a parent, the whole prompt."""
    prompt_length: int
    """Without a parent: how many tokens of the context come before the first assistant message."""
    ids: array[int]
    """Its sampled tokens."""
    generation: Generation
    reply: ChatMessage
    """The reply that the agent was sent."""
    messages: tuple[ChatMessage, ...]
    """The new messages of the request."""
    continuation: Continuation
    history: History
    """The history that ends with it."""
    all_ids: array[int] | None = None
    """All tokens from the conversation's start to its end; None once a turn follows it."""
    is_delivered: bool = False
    """Whether the agent has received it; other turns are not trained."""


@dataclass(slots=True, eq=False)
class History:
    """A node in the tree of the histories that an agent can send; its children have one more message."""

    longer: dict[MessageKey, History] = field(default_factory=dict[MessageKey, "History"])
    """Its children, by their last message."""
    answers: dict[MessageKey, list[SampledTurn]] = field(default_factory=dict[MessageKey, list[SampledTurn]])
    """The turns that answer it, by the reply that was sent; the model may sample the same text twice."""
    length: int = 0
    """How many messages it has."""
    tools: bytes = b""
    """The conversation's tools as JSON; only in a root."""


@dataclass(slots=True)
class Prompt:
    """The prompt of the next turn, and the turn that it continues."""

    parent: SampledTurn | None
    context: array[int]
    prompt_length: int
    messages: tuple[ChatMessage, ...]
    continuation: Continuation
    history: History
    """The history that it continues."""
    ids: array[int] = field(default_factory=lambda: array("i"))
    """All its tokens, for the engine."""

    @property
    def opening_length(self) -> int:
        """How many tokens come before the first assistant message."""
        turn = self.parent
        while turn is not None and turn.parent is not None:
            turn = turn.parent
        return self.prompt_length if turn is None else turn.prompt_length


@dataclass(slots=True)
class Segment:
    """A sequence to train on: the turns from the first one of a conversation to a last one."""

    tokens: TokenBuffer
    """The mask is 1 on the turns that this segment trains; turns that an earlier segment trains are context."""
    spans: list[tuple[SampledTurn, int, int]]
    """The trained turns, each with its first token and one past its last."""


@dataclass(frozen=True, slots=True)
class ServedTurn:
    """A turn and its reply."""

    reply: ModelReply
    turn: SampledTurn


class ServedEpisode(Protocol):
    """What the server needs of an episode."""

    model_name: str
    context: int
    """The most tokens that a conversation may have."""

    def note_too_long(self, refusal: ContextTooLong) -> None:
        """Record a request for a turn that was refused before all of it was read."""
        ...

    def note_bug(self, error: Exception) -> None:
        """Record a bug of turnsmith in answering a request."""
        ...

    def note_refused(self, refusal: Refusal) -> None:
        """Record a request that got an error because of its content, or because the engine failed."""
        ...

    async def take_turn(self, request: ModelRequest) -> ServedTurn:
        """Sample the model's next turn; raises a `Refusal`."""
        ...

    def count_tokens(self, request: ModelRequest) -> int:
        """The length of a request's prompt."""
        ...

    def add_reward(self, value: float, turn: int | None) -> None:
        """Add a reward to a turn; raises a `Refusal` if there is no such turn."""
        ...
