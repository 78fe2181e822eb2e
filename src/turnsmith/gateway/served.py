"""The interface between the HTTP server and the episodes that it serves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from turnsmith.gateway.request import ContextTooLong, ModelReply, ModelRequest, Refusal
from turnsmith.gateway.turns import SampledTurn


@dataclass(frozen=True, slots=True)
class ServedTurn:
    """A turn and its reply."""

    reply: ModelReply
    turn: SampledTurn


class ServedEpisode(Protocol):
    """What the server needs of an episode."""

    model_name: str
    context: int
    """The most tokens that a conversation can have."""

    def note_too_long(self, refusal: ContextTooLong) -> None:
        """Take note of a request for a turn that was refused before it was read to its end."""
        ...

    def note_bug(self, error: Exception) -> None:
        """Take note of a bug of turnsmith in answering a request."""
        ...

    def note_refused(self, refusal: Refusal) -> None:
        """Take note of a request that got an error because of what it asked for, or because the engine failed."""
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
