"""The record of an episode while it is played: packed, and without what can be worked out again at its end.

10^5 episodes that wait for the engine must fit in one process. So numbers stand in packed arrays, log-probs are kept
only for tokens that have one, and what the model said is kept only as tokens. `write` makes the trajectory of all that.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Any

import orjson

from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Generation
from turnsmith.rollout.turn import Message, TurnResult
from turnsmith.trajectory import TokenBuffer, Trajectory, TurnRecord

_Told = str | tuple[tuple[str, str, str], ...]
"""Messages: the text of a single one by the user, or (role, name, text) of each."""
_START, _STOP, _VERSION, _GENERATE, _STEP, _REWARD, _WIDTH = range(7)


class EpisodeBuffer:
    """What has happened so far in one episode.

    Example:
        >>> from transformers import AutoTokenizer
        >>> from turnsmith.models import resolve
        >>> chat = Chat(AutoTokenizer.from_pretrained(resolve("tiny")))
        >>> draft = EpisodeBuffer()
        >>> draft.open("Go.", [{"role": "user", "content": "Go."}])
        >>> draft.prompt([1, 2])
        >>> draft.speak(Generation(chat.encode("up"), [-0.5, -0.25]), seconds=0.1)
        >>> draft.hear(TurnResult([{"role": "user", "content": "Done."}], reward=1.0, terminated=True))
        >>> trajectory = Trajectory()
        >>> draft.write(trajectory, chat)
        >>> trajectory.actions, trajectory.rewards, list(trajectory.tokens.log_probs)
        (['up'], [1.0], [0.0, 0.0, -0.5, -0.25])
    """

    __slots__ = (
        "exact",
        "ids",
        "infos",
        "is_done",
        "log_probs",
        "numbers",
        "opening",
        "prompt_length",
        "reasons",
        "told",
    )

    def __init__(self) -> None:
        self.ids = array("i")
        """All tokens so far. Replaced when it grows, never changed, so that an engine may keep it."""
        self.prompt_length = 0
        self.exact = True
        self.is_done = False
        self.log_probs = array("f")
        """Of the tokens that the model sampled."""
        self.numbers = array("d")
        """`_WIDTH` for each turn."""
        self.reasons: list[str | tuple[str, tuple[tuple[int, int], ...]]] = []
        """Why each turn stopped; and where new weights came in the middle of it, if they did."""
        self.opening: tuple[str, _Told] = ("", ())
        """The first observation, and the messages that tell it."""
        self.told: list[_Told] = []
        self.infos: list[dict[str, Any] | str | None] = []
        """What each turn's `info` was; tool calls as JSON."""

    @property
    def turns(self) -> int:
        """How many times the model has spoken."""
        return len(self.reasons)

    def open(self, observation: str, messages: Sequence[Message]) -> None:
        """Begin with what the model is told first."""
        self.opening = (observation, _pack(messages))

    def prompt(self, prompt_ids: Sequence[int]) -> None:
        """Begin the tokens with the opening prompt."""
        self.ids = array("i", prompt_ids)
        self.prompt_length = len(self.ids)

    def speak(self, said: Generation, seconds: float) -> None:
        """Add what the model sampled; raises, and adds nothing, if it is not whole."""
        got, likely = len(said.token_ids), len(said.log_probs)
        if got != likely:
            raise ValueError(f"{got} token ids but {likely} log-probs: the engine must give one for each.")
        start = len(self.ids)
        # Added up instead of extended: an array that grows in place takes a sixteenth more than it needs.
        ids, log_probs = self.ids + array("i", said.token_ids), self.log_probs + array("f", said.log_probs)
        self.numbers = self.numbers + array("d", (start, len(ids), said.weights_version, seconds, 0.0, 0.0))
        self.ids, self.log_probs = ids, log_probs
        swaps = tuple((start + place, version) for place, version in said.swaps) if said.swaps else ()
        self.reasons.append((said.stop_reason, swaps) if swaps else said.stop_reason)
        self.exact = self.exact and said.exact

    def wait(self, seconds: float) -> None:
        """Add how long the last turn's reaction took, whether one came or not."""
        self.numbers[_STEP - _WIDTH] = seconds

    def hear(self, reaction: TurnResult) -> None:
        """Add what came back for the last turn."""
        self.numbers[_REWARD - _WIDTH] = reaction.reward
        self.is_done = reaction.done
        self.told.append(_pack(reaction.messages))
        self.infos.append(_pack_info(reaction))

    def go_on(self, bridge: Sequence[int]) -> None:
        """Add the tokens that lead to the model's next turn."""
        self.ids = self.ids + array("i", bridge)

    def write(self, trajectory: Trajectory, chat: Chat) -> None:
        """Put everything into the trajectory."""
        trajectory.turns = self._turns()
        trajectory.tokens = self._tokens(trajectory.turns)
        trajectory.exact = self.exact
        trajectory.actions = [chat.text(self.ids[turn.start : turn.stop]) for turn in trajectory.turns]
        number = self.turns
        told = list(map(_unpack, self.told))
        heard = ["\n".join(message["content"] for message in messages) for messages in told]
        trajectory.states = [self.opening[0], *heard][:number]
        trajectory.rewards = self.numbers[_REWARD::_WIDTH].tolist()
        trajectory.dones = [False] * number
        if number:
            trajectory.dones[-1] = self.is_done
        trajectory.infos = [*map(_unpack_info, self.infos), *({} for _ in range(number - len(self.infos)))]
        trajectory.messages = _unpack(self.opening[1])
        for place, action in enumerate(trajectory.actions):
            trajectory.messages.append({"role": "assistant", "content": action})
            trajectory.messages += told[place] if place < len(told) else ()

    def _turns(self) -> list[TurnRecord]:
        turns: list[TurnRecord] = []
        for place, reason in enumerate(self.reasons):
            start, stop, version, generate, step, _ = self.numbers[place * _WIDTH : (place + 1) * _WIDTH]
            stopped, swaps = (reason, ()) if isinstance(reason, str) else reason
            turns.append(TurnRecord(int(start), int(stop), stopped, int(version), generate, step, swaps))
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


def _pack(messages: Sequence[Message]) -> _Told:
    if len(messages) == 1 and messages[0]["role"] == "user":
        return messages[0]["content"]
    # A system prompt is the same in most episodes: keep one of them.
    return tuple(
        (one["role"], one.get("name", ""), sys.intern(one["content"]) if one["role"] == "system" else one["content"])
        for one in messages
    )


def _unpack(told: _Told) -> list[Message]:
    if isinstance(told, str):
        return [{"role": "user", "content": told}]
    return [
        {"role": role, "name": name, "content": text} if name else {"role": role, "content": text}
        for role, name, text in told
    ]


def _pack_info(reaction: TurnResult) -> dict[str, Any] | str | None:
    if not reaction.calls:  # what the environment itself said, which may be of any type
        return reaction.info or None
    try:
        return orjson.dumps(reaction.info).decode()  # the bytes themselves keep orjson's buffer, of a kilobyte or more
    except TypeError:  # arguments that no JSON holds, such as a whole number over 64 bits
        return reaction.info


def _unpack_info(packed: dict[str, Any] | str | None) -> dict[str, Any]:
    if packed is None:
        return {}
    return orjson.loads(packed) if isinstance(packed, str) else packed
