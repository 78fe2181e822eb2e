"""Finds the turn that a request continues, by comparing its messages with the replies that the agent was sent."""

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
    """How far a request matched the known histories. The next request usually repeats it and continues from there."""

    tools: bytes
    messages: tuple[ChatMessage, ...]
    turn: SampledTurn | None
    done: int
    history: History
    reached: list[History]
    """All histories that match these messages."""


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
        """By tools, because they are part of the prompt."""
        self._walks: deque[_Walk] = deque(maxlen=_MOST_WALKS)

    def deepest(self, request: ModelRequest) -> tuple[SampledTurn | None, int, History]:
        """The last turn whose history a request repeats, how many messages that covers, and that history."""
        tools = orjson.dumps(request.tools) if request.tools else b""
        messages, walk = request.messages, self._longest_walk(tools, request.messages)
        turn, done, history, reached, followed = walk.turn, walk.done, walk.history, walk.reached, len(walk.messages)
        for place in range(followed, len(messages)):
            message = messages[place]
            key = message.key
            following = [longer for node in reached if (longer := node.longer.get(key)) is not None]
            if message.role == "assistant":
                turns = [turn for node in reached for turn in node.answers.get(key, ())]
                if len(turns) > 1:
                    turns = [turn for turn in turns if _has_same_ids(turn.reply, message)] or turns
                if turns:
                    turn = last_delivered(turns)
                    done, history = place + 1, turn.history
                    following += [turn.history for turn in turns]
            if not following:
                break
            reached, followed = following, place + 1
        if followed:
            self._walks.appendleft(_Walk(tools, messages[:followed], turn, done, history, reached))
        return turn, done, history

    def _longest_walk(self, tools: bytes, messages: tuple[ChatMessage, ...]) -> _Walk:
        """The longest known walk that these messages repeat. It is forgotten, because the next walk contains it.

        Comparing is fast: dialects return the same objects for a repeated history, and tuples compare identities first.
        """
        walks = [
            walk
            for walk in self._walks
            if walk.tools == tools
            and len(walk.messages) <= len(messages)
            and messages[: len(walk.messages)] == walk.messages
        ]
        if not walks:
            # A new root is kept only when a turn is added: an agent can send any number of lists of tools.
            root = self._roots.get(tools) or History(tools=tools)
            return _Walk(tools, (), None, 0, root, [root])
        longest = max(walks, key=lambda walk: len(walk.messages))
        self._walks.remove(longest)
        return longest

    def add(self, history: History, messages: Sequence[ChatMessage], turn: SampledTurn, keys: set[MessageKey]) -> None:
        """Add a turn that answers a history and new messages, under each key by which an agent may send it back."""
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
        """Forget the walks with one of the keys at this place, because they do not know what was added there."""
        kept = [walk for walk in self._walks if len(walk.messages) <= place or walk.messages[place].key not in keys]
        self._walks = deque(kept, _MOST_WALKS)


def reply_keys(reply: ChatMessage) -> set[MessageKey]:
    """The keys by which an agent may send a reply back: many agents drop the text of a turn that calls tools.

    Example:
        >>> len(reply_keys(ChatMessage("assistant", "Hello")))
        1
    """
    return {reply.key, ChatMessage("assistant", "", reply.calls).key} if reply.calls else {reply.key}


def last_delivered(turns: Sequence[SampledTurn]) -> SampledTurn:
    """The last delivered one of turns with the same reply, which may differ in their thinking; else the last one."""
    return next((turn for turn in reversed(turns) if turn.is_delivered), turns[-1])


def _has_same_ids(reply: ChatMessage, message: ChatMessage) -> bool:
    """Whether a message has the ids of a reply's tool calls; they tell equal turns apart."""
    return [call.id for call in reply.calls] == [call.id for call in message.calls]
