"""The conversations of `turnsmith serve`: which of them a request continues, and when one has ended.

The APIs have no name for a conversation: a client sends its whole history each time. So a request continues the
conversation whose last answer its history ends with, and opens a new one if there is none.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import orjson

from turnsmith.concurrency.clocks import Clock
from turnsmith.gateway.histories import reply_keys
from turnsmith.gateway.request import ContextTooLong, ModelReply, ModelRequest, Refusal
from turnsmith.gateway.turns import Prompt, ServedTurn
from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Engine, Generation, Sampling
from turnsmith.rollout.agent_session import AgentSession
from turnsmith.rollout.spec import Limits
from turnsmith.rollout.turn_rules import TurnRules
from turnsmith.tools.parsing import ActionParser
from turnsmith.tools.parsing.base import answer_start
from turnsmith.trajectory import Outcome, Trajectory

_MOST_LIVE = 10_000
"""The most conversations that are kept; one more ends the one that has been idle for longest."""
_LEAST_TEMPERATURE, _MOST_TOP_K = 0.01, 10**6
"""Engines overflow at a lower temperature and a higher top-k: the client means greedy decoding, or all tokens."""


class Conversation(AgentSession):
    """One conversation. Unlike in an episode of training, the client's own sampling parameters apply."""

    began = last_used = 0.0
    waiting = 0
    """Requests that wait for a turn."""
    histories: frozenset[int] = frozenset()
    """Where it can be continued, see `Conversations`."""

    def end(self) -> Trajectory | None:
        """The conversation as an episode; None if no turn of it has reached the client."""
        trajectory = self.to_trajectory()
        if not trajectory.turns:
            return None
        trajectory.episode_id = trajectory.group_id = self.rules.episode_id
        trajectory.outcome, trajectory.error = self.ended_by or (Outcome.COMPLETED, "")
        trajectory.seconds = self.last_used - self.began
        return trajectory

    def _turn_sampling(self, request: ModelRequest, prompt: Prompt) -> Sampling:
        left = self.context - len(prompt.ids)
        if left < 1:
            self.ended_by = Outcome.TOKEN_LIMIT, ""
            raise ContextTooLong(len(prompt.ids), self.context, "inference.max_episode_tokens allows more.")
        wanted = self.rules.plan.max_tokens if request.max_tokens is None else max(1, request.max_tokens)
        sampling = replace(self.rules.sampling(self._begun, left), max_tokens=min(wanted, left))
        return _with_wishes(sampling, request)

    def _until_stop(self, request: ModelRequest, generation: Generation) -> Generation:
        ids = list(generation.token_ids)
        if not request.stop or not _first_stop(self._answer(ids), request.stop):
            return generation
        # The tokens that complete the text are the last that the conversation goes on from.
        most = bisect_left(
            range(len(ids)), True, key=lambda n: bool(_first_stop(self._answer(ids[: n + 1]), request.stop))
        )
        swaps = tuple(swap for swap in generation.swaps if swap[0] <= most)
        log_probs = generation.log_probs[: most + 1]
        return replace(generation, token_ids=ids[: most + 1], log_probs=log_probs, stop_reason="stop", swaps=swaps)

    def _reply(
        self, request: ModelRequest, generation: Generation, prompt_tokens: int
    ) -> tuple[ModelReply, dict[str, Any]]:
        reply, info = super()._reply(request, generation, prompt_tokens)
        stop = _first_stop(reply.text, request.stop)
        text = reply.text.partition(stop)[0] if stop else reply.text
        return replace(reply, text=text, stop=stop), info

    def _answer(self, ids: list[int]) -> str:
        text = self.rules.chat.text(ids)
        start = answer_start(text)
        return "" if start < 0 else text[start:]

    def _note_wishes(self, request: ModelRequest, info: dict[str, Any]) -> None:
        if request.sampling:
            info["sampling"] = dict(request.sampling)
        if request.unenforced:
            info["not_applied"] = dict.fromkeys(request.unenforced, True)


class Conversations:
    """Implements `ServedEpisode` for any number of conversations with one model.

    Args:
        model_name: What `models` answers.
        engine: Samples the turns.
        chat: The model's chat template.
        limits: A conversation may have as many tokens as `prompt_tokens` and `tokens` together; the others are unused.
        sampling: For requests that do not say otherwise.
        parser: Reads tool calls; None: `FunctionCallingParser`.
        idle: Seconds without a request after which a conversation has ended.
    """

    def __init__(
        self,
        model_name: str,
        engine: Engine,
        chat: Chat,
        *,
        limits: Limits,
        sampling: Sampling,
        parser: ActionParser | None,
        idle: float,
    ) -> None:
        self.model_name, self.context = model_name, limits.context
        self._engine, self._chat, self._limits, self._sampling, self._parser = engine, chat, limits, sampling, parser
        self._idle = idle
        self._live: dict[Conversation, None] = {}
        """In the order in which they were used; the most recent one is the last."""
        self._by_history: defaultdict[int, Counter[Conversation]] = defaultdict(Counter)
        """By a hash of the tools and of all messages up to an answer, with how often it went on from there. This only
        finds the conversation: which turn of it is continued, its forest decides by the messages themselves."""
        self._ended: list[Trajectory] = []
        """Conversations that `take_ended` has not returned yet."""
        self._numbers = count(1)

    async def take_turn(self, request: ModelRequest) -> ServedTurn:
        """Sample the next turn of a conversation; raises a `Refusal`."""
        conversation = self._continued(request) or self._opened()
        self._use(conversation)
        self._end([one for one in list(self._live)[: max(0, len(self._live) - _MOST_LIVE)] if not one.waiting])
        conversation.waiting += 1
        try:
            served = await conversation.take_turn(request)
        finally:
            conversation.waiting -= 1
            self._use(conversation)
        *_, history = _histories(request)
        for key in reply_keys(served.reply.message):
            place = hash((history, key))
            conversation.histories |= {place}
            self._by_history[place][conversation] += 0
        return served

    def note_too_long(self, refusal: ContextTooLong) -> None:
        """Nothing to note: the client sees it, and no conversation has ended."""

    def note_bug(self, error: Exception) -> None:
        """The client gets an error, and the next one may be answered: a server goes on."""

    def note_refused(self, refusal: Refusal) -> None:
        """Nothing to note: the client sees it."""

    def count_tokens(self, request: ModelRequest) -> int:
        """The length of a request's prompt."""
        known = self._candidates(request)
        return (next(iter(known)) if known else self._opened()).count_tokens(request)

    def add_reward(self, value: float, turn: int | None) -> None:
        """Refuses: a model that is served gets no rewards."""
        raise Refusal("There are no rewards here: they belong to training and evaluation.", status=404)

    def take_ended(self, *, every: bool = False) -> list[Trajectory]:
        """The conversations that have ended since the last call, which are forgotten; with `every`, all that are left.

        Those without a turn that reached its client are left out.
        """
        now = time.monotonic()
        self._end([one for one in self._live if every or (not one.waiting and now - one.last_used > self._idle)])
        ended, self._ended = self._ended, []
        return ended

    def _continued(self, request: ModelRequest) -> Conversation | None:
        candidates = self._candidates(request)
        if not candidates:
            return None
        # Two conversations may have the same messages. Each client continues one of them, and first
        # one whose last answer was received.
        conversation, *others = candidates
        if others:
            conversation = min(
                candidates, key=lambda one: (not one.forest.continues_received(request), candidates[one])
            )
        candidates[conversation] += 1
        return conversation

    def _candidates(self, request: ModelRequest) -> Counter[Conversation]:
        """The conversations with the longest history that the request repeats."""
        *before, _ = _histories(request)
        return next((self._by_history[place] for place in reversed(before) if place in self._by_history), Counter())

    def _opened(self) -> Conversation:
        name = f"conversation-{next(self._numbers)}"
        rules = TurnRules.of(name, self._chat, limits=self._limits, sampling=self._sampling, parser=self._parser)
        conversation = Conversation(rules, self._engine, Clock(None))
        conversation.model_name = self.model_name
        conversation.began = time.monotonic()
        return conversation

    def _use(self, conversation: Conversation) -> None:
        self._live.pop(conversation, None)
        self._live[conversation] = None
        conversation.last_used = time.monotonic()

    def _end(self, conversations: Iterable[Conversation]) -> None:
        for conversation in conversations:
            del self._live[conversation]
            for place in conversation.histories:
                del self._by_history[place][conversation]
                if not self._by_history[place]:
                    del self._by_history[place]
            trajectory = conversation.end()
            if trajectory is not None:
                self._ended.append(trajectory)


def _first_stop(text: str, stops: tuple[str, ...]) -> str:
    """Which of the texts comes first; empty: none is in it."""
    return min((stop for stop in stops if stop in text), key=text.index, default="")


def _histories(request: ModelRequest) -> Iterator[int]:
    """A hash of the request's history up to each assistant message in it, and last of the whole."""
    history = hash(orjson.dumps(request.tools) if request.tools else b"")
    for message in request.messages:
        history = hash((history, message.key))
        if message.role == "assistant":
            yield history
    yield history


def _with_wishes(sampling: Sampling, request: ModelRequest) -> Sampling:
    """The sampling parameters with what the client asks for; raises a `Refusal` if they make no sense."""
    wishes = request.sampling
    temperature = wishes.get("temperature", sampling.temperature)
    top_p, top_k = wishes.get("top_p", sampling.top_p), int(wishes.get("top_k", sampling.top_k))
    if temperature < 0:
        raise Refusal("`temperature` must be 0 or more.", param="temperature")
    if not 0 < top_p <= 1:
        raise Refusal("`top_p` must be more than 0 and at most 1.", param="top_p")
    if temperature < _LEAST_TEMPERATURE:
        temperature = 0.0
    return replace(sampling, temperature=temperature, top_p=top_p, top_k=top_k if 0 < top_k < _MOST_TOP_K else -1)
