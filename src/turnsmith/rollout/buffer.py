"""The compact record of an episode in progress; `to_trajectory` expands it when the episode ends.

10^5 episodes that wait for the engine must fit in one process. So numbers are kept in packed arrays, log-probs only for
sampled tokens, and the model's turns only as token ids.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Generation
from turnsmith.rollout.turn import Message, TurnResult
from turnsmith.trajectory import TokenBuffer, Trajectory, TurnRecord

_PackedMessages = str | tuple[str, ...]
"""The text of a single user message, or role, name and text of each message, one after another."""
_START, _STOP, _VERSION, _GENERATE, _STEP, _REWARD, _WIDTH = range(7)
"""Columns of `EpisodeBuffer.numbers`, and how many there are."""


@dataclass(slots=True)
class EpisodeBuffer:
    """What has happened so far in one episode.

    Example:
        >>> from transformers import AutoTokenizer
        >>> from turnsmith.inference.models import resolve
        >>> chat = Chat(AutoTokenizer.from_pretrained(resolve("tiny")))
        >>> buffer = EpisodeBuffer()
        >>> buffer.set_opening("Go.", [{"role": "user", "content": "Go."}])
        >>> buffer.set_prompt([1, 2])
        >>> buffer.append_turn(Generation(chat.encode("up"), [-0.5, -0.25]), seconds=0.1)
        >>> buffer.append_result(TurnResult([{"role": "user", "content": "Done."}], reward=1.0, terminated=True))
        >>> trajectory = buffer.to_trajectory(chat)
        >>> trajectory.actions, trajectory.rewards, list(trajectory.tokens.log_probs)
        (['up'], [1.0], [0.0, 0.0, -0.5, -0.25])
    """

    ids: array[int] = field(default_factory=lambda: array("i"))
    """All tokens so far. Replaced when it grows and never changed in place, so an engine may hold on to it."""
    prompt_length: int = 0
    exact: bool = True
    is_done: bool = False
    log_probs: array[float] = field(default_factory=lambda: array("f"))
    """Of sampled tokens only."""
    numbers: array[float] = field(default_factory=lambda: array("d"))
    """`_WIDTH` numbers per turn."""
    stops: list[str | tuple[str, tuple[tuple[int, int], ...]]] = field(default_factory=list)
    """Each turn's stop reason, with its weight swaps if new weights arrived in the middle of it."""
    opening: tuple[str, _PackedMessages] = ("", ())
    """The first observation, and the messages that show it to the model."""
    results: list[_PackedMessages] = field(default_factory=list)
    """The messages that answered each turn."""
    infos: list[dict[str, Any] | str | None] = field(default_factory=list)
    """Each turn's `info`; JSON if it holds tool calls."""

    @property
    def turns(self) -> int:
        """How many turns the model has taken."""
        return len(self.stops)

    def set_opening(self, observation: str, messages: Sequence[Message]) -> None:
        """Set the first observation and the messages of the opening prompt."""
        self.opening = (observation, _pack(messages))

    def set_prompt(self, prompt_ids: Sequence[int]) -> None:
        """Set the tokens of the opening prompt."""
        self.ids = array("i", prompt_ids)
        self.prompt_length = len(self.ids)

    def append_turn(self, generation: Generation, seconds: float) -> None:
        """Append a turn of the model. Raises, and appends nothing, if it is malformed."""
        counts = len(generation.token_ids), len(generation.log_probs)
        if counts[0] != counts[1]:
            raise ValueError(f"{counts[0]} token ids but {counts[1]} log-probs: the engine must return one for each.")
        start = len(self.ids)
        # The arrays are concatenated, because an array that grows in place allocates a sixteenth more than it needs.
        ids, log_probs = self.ids + array("i", generation.token_ids), self.log_probs + array("f", generation.log_probs)
        self.numbers = self.numbers + array("d", (start, len(ids), generation.weights_version, seconds, 0.0, 0.0))
        self.ids, self.log_probs = ids, log_probs
        swaps = tuple((start + index, version) for index, version in generation.swaps)
        self.stops.append((generation.stop_reason, swaps) if swaps else generation.stop_reason)
        self.exact = self.exact and generation.exact

    def set_step_seconds(self, seconds: float) -> None:
        """Set how long the environment or the tools took for the last turn, even if they failed."""
        self.numbers[_STEP - _WIDTH] = seconds

    def append_result(self, result: TurnResult) -> None:
        """Append what the environment or the tools returned for the last turn."""
        self.numbers[_REWARD - _WIDTH] = result.reward
        self.is_done = result.done
        self.results.append(_pack(result.messages))
        self.infos.append(_pack_info(result))

    def append_bridge(self, ids: Sequence[int]) -> None:
        """Append the tokens between the last turn and the model's next one."""
        self.ids = self.ids + array("i", ids)

    def to_trajectory(self, chat: Chat) -> Trajectory:
        """Expand the record; texts are decoded from the tokens."""
        turns, results = self._turns(), list(map(_unpack, self.results))
        actions = [chat.text(self.ids[turn.start : turn.stop]) for turn in turns]
        messages = _unpack(self.opening[1])
        for place, action in enumerate(actions):
            messages.append({"role": "assistant", "content": action})
            messages += results[place] if place < len(results) else ()
        observations = ["\n".join(message["content"] for message in result) for result in results]
        return Trajectory(
            states=[self.opening[0], *observations][: len(turns)],
            actions=actions,
            rewards=self.numbers[_REWARD::_WIDTH].tolist(),
            dones=[self.is_done and turn is turns[-1] for turn in turns],
            infos=[*map(_unpack_info, self.infos), *({} for _ in turns[len(self.infos) :])],
            messages=messages,
            turns=turns,
            tokens=self._tokens(turns),
            exact=self.exact,
        )

    def _turns(self) -> list[TurnRecord]:
        turns: list[TurnRecord] = []
        for place, stop in enumerate(self.stops):
            first, end, version, generate, step, _ = self.numbers[place * _WIDTH : (place + 1) * _WIDTH]
            reason, swaps = (stop, ()) if isinstance(stop, str) else stop
            turns.append(TurnRecord(int(first), int(end), reason, int(version), generate, step, swaps))
        return turns

    def _tokens(self, turns: list[TurnRecord]) -> TokenBuffer:
        log_probs, mask = array("f", bytes(4 * len(self.ids))), array("b", bytes(len(self.ids)))
        done = 0
        for turn in turns:
            length = turn.stop - turn.start
            log_probs[turn.start : turn.stop] = self.log_probs[done : done + length]
            mask[turn.start : turn.stop] = array("b", b"\x01" * length)
            done += length
        return TokenBuffer(self.ids, log_probs, mask, self.prompt_length)


def _pack(messages: Sequence[Message]) -> _PackedMessages:
    if len(messages) == 1 and messages[0]["role"] == "user":
        return messages[0]["content"]
    packed: list[str] = []
    for message in messages:
        # Most episodes have the same system prompt, and few tools: interned, each text is stored once.
        text = sys.intern(message["content"]) if message["role"] == "system" else message["content"]
        packed += message["role"], sys.intern(str(message.get("name", ""))), text
    return tuple(packed)


def _unpack(packed: _PackedMessages) -> list[Message]:
    if isinstance(packed, str):
        return [{"role": "user", "content": packed}]
    return [
        {"role": role, "name": name, "content": text} if name else {"role": role, "content": text}
        for role, name, text in zip(packed[::3], packed[1::3], packed[2::3], strict=True)
    ]


def _pack_info(result: TurnResult) -> dict[str, Any] | str | None:
    if not result.calls:  # the environment's own info, which may hold objects of any type
        return result.info or None
    try:
        return orjson.dumps(
            result.info
        ).decode()  # decoded: the bytes object keeps orjson's buffer of a kilobyte or more
    except TypeError:  # arguments that JSON cannot hold, such as an integer over 64 bits
        return result.info


def _unpack_info(packed: dict[str, Any] | str | None) -> dict[str, Any]:
    if packed is None:
        return {}
    return orjson.loads(packed) if isinstance(packed, str) else packed
