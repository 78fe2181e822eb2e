"""Finds the turn that a request goes on from, by comparing what an agent sends with what it was handed out."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from turnsmith.gateway.request import ChatMessage, ModelRequest
from turnsmith.gateway.turns import History, MessageKey, SampledTurn

_MOST_WALKS = 8


@dataclass(slots=True, eq=False)
class _Walk:
    """How far a request could be followed: the next one usually repeats its messages, and goes on from there."""

    tools: bytes
    messages: tuple[ChatMessage, ...]
    turn: SampledTurn | None
    done: int
    history: History
    reached: list[History]
    """All histories that read like these messages."""


class KnownHistories:
    """All histories of an episode.

    Example:
        >>> known = KnownHistories()
        >>> turn, done, history = known.deepest(ModelRequest((ChatMessage("user", "Hi"),)))
        >>> turn, done
        (None, 0)
    """

    def __init__(self) -> None:
        self._roots: dict[bytes, History] = {}
        """By tools: they are part of the prompt, so others begin another history."""
        self._walks: deque[_Walk] = deque(maxlen=_MOST_WALKS)

    def deepest(self, request: ModelRequest) -> tuple[SampledTurn | None, int, History]:
        """The deepest turn whose history a request repeats, how many messages that is, and the history to there."""
        tools = orjson.dumps(request.tools) if request.tools else b""
        messages, walk = request.messages, self._longest_walk(tools, request.messages)
        turn, done, history, reached, followed = walk.turn, walk.done, walk.history, walk.reached, len(walk.messages)
        for place in range(followed, len(messages)):
            message = messages[place]
            key = message.key
            following = [longer for one in reached if (longer := one.longer.get(key)) is not None]
            if message.role == "assistant":
                turns = [turn for one in reached for turn in one.answers.get(key, ())]
                if len(turns) > 1:
                    turns = [turn for turn in turns if _has_same_ids(turn.reply, message)] or turns
                if turns:
                    turn = received(turns)
                    done, history = place + 1, turn.history
                    following += [turn.history for turn in turns]
            if not following:
                break
            reached, followed = following, place + 1
        if followed:
            self._walks.appendleft(_Walk(tools, messages[:followed], turn, done, history, reached))
        return turn, done, history

    def _longest_walk(self, tools: bytes, messages: tuple[ChatMessage, ...]) -> _Walk:
        """The longest of the last walks that these messages repeat; it is the next one's beginning, so it is dropped.

        Tuples compare the same objects by identity, and dialects give the same objects for a history that goes on.
        """
        walks = [
            walk
            for walk in self._walks
            if walk.tools == tools
            and len(walk.messages) <= len(messages)
            and messages[: len(walk.messages)] == walk.messages
        ]
        if not walks:
            # One that is new is kept when a turn is added: an agent can ask with new tools as often as it likes.
            root = self._roots.get(tools) or History(tools=tools)
            return _Walk(tools, (), None, 0, root, [root])
        longest = max(walks, key=lambda walk: len(walk.messages))
        self._walks.remove(longest)
        return longest

    def add(self, history: History, messages: Sequence[ChatMessage], turn: SampledTurn, keys: set[MessageKey]) -> None:
        """Add a turn that answers a history and new messages; an agent may send it in the form of any of the keys."""
        if not history.length:
            history = self._roots.setdefault(history.tools, history)
        for message in messages:
            known = history.longer.get(message.key)
            if known is None:
                known = history.longer[message.key] = History(length=history.length + 1)
                self._forget_walks({message.key}, history.length)
            history = known
        turn.history.length = history.length + 1
        for key in keys:
            history.answers.setdefault(key, []).append(turn)
        self._forget_walks(keys, history.length)

    def _forget_walks(self, keys: set[MessageKey], place: int) -> None:
        """Drop the walks that went on from this place with one of the keys: they may have missed what is new there."""
        kept = [walk for walk in self._walks if len(walk.messages) <= place or walk.messages[place].key not in keys]
        self._walks = deque(kept, _MOST_WALKS)


def reply_keys(reply: ChatMessage) -> set[MessageKey]:
    """What an agent may send back for what it was handed out: many drop the text of a turn that calls tools.

    Example:
        >>> len(reply_keys(ChatMessage("assistant", "Hello")))
        1
    """
    return {reply.key, ChatMessage("assistant", "", reply.calls).key} if reply.calls else {reply.key}


def received(alike: Sequence[SampledTurn]) -> SampledTurn:
    """Of turns that read alike, such as samples that differ in their thinking only, the last that the agent has."""
    return next((turn for turn in reversed(alike) if turn.is_delivered), alike[-1])


def _has_same_ids(reply: ChatMessage, message: ChatMessage) -> bool:
    """Whether the tool calls have the ids that were handed out: some agents keep them, and then no turn is like it."""
    return [call.id for call in reply.calls] == [call.id for call in message.calls]
