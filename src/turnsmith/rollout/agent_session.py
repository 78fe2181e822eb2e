"""The model's side of one agent episode: samples the turns that the agent asks for, within the episode's limits."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import zlib
from collections import Counter
from dataclasses import replace
from typing import Any
from uuid import uuid4

from turnsmith.clocks import Clock
from turnsmith.errors import ConfigError, InternalError, TextRefused, describe_failure
from turnsmith.gateway.forest import Forest
from turnsmith.gateway.request import (
    ContextTooLong,
    ModelReply,
    ModelRequest,
    Refusal,
    RequestedCall,
    refuse_unless_default,
)
from turnsmith.gateway.served import ServedTurn
from turnsmith.gateway.turns import Prompt, SampledTurn
from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Engine, Generation, Sampling, engine_name
from turnsmith.internal_errors import internal_error, is_ours
from turnsmith.rollout.limits import Limits
from turnsmith.step_result import to_reward
from turnsmith.threads import is_cancelled_from_outside
from turnsmith.tools.definition import ToolCall
from turnsmith.tools.parsing import ActionParser, FunctionCallingParser, NativeParser
from turnsmith.tools.parsing.base import THINK_END, THINK_START, answer_start
from turnsmith.trajectory import Outcome, Trajectory, TurnRecord

logger = logging.getLogger(__name__)
_MOST_REFUSED = 20
"""Different errors that are kept of an episode."""
_DEFAULT_PARSER = FunctionCallingParser()


class AgentSession:
    """Implements `ServedEpisode` for one attempt at an episode."""

    def __init__(
        self,
        episode_id: str,
        engine: Engine,
        chat: Chat,
        clock: Clock,
        *,
        limits: Limits,
        sampling: Sampling,
        parser: ActionParser | None,
    ) -> None:
        self.episode_id = episode_id
        self._engine, self._chat, self._clock, self._limits = engine, chat, clock, limits
        self._sampling = replace(sampling, stop_token_ids=_union(chat.stop_token_ids, sampling))
        self._parser: ActionParser = parser or _DEFAULT_PARSER
        self.context = limits.context
        self.forest = Forest(chat, self._parser, context=self.context)
        self.model_name = engine_name(engine)
        self.ended_by: tuple[Outcome, str] | None = None
        """Why the last request got no turn, or only half a turn; the episode ends so unless a later one gets one."""
        self.bug: InternalError | None = None
        """The first bug of turnsmith in answering a request."""
        self.rewards: dict[int, float] = {}
        self.infos: dict[int, dict[str, Any]] = {}
        self.seconds: dict[int, float] = {}
        self.last_reply_at = time.perf_counter()
        self.refused: Counter[str] = Counter()
        """Requests that got an error for what they asked for, by its sentence."""
        self._begun = 0
        self._calls = 0

    async def take_turn(self, request: ModelRequest) -> ServedTurn:
        """Sample the next turn; raises a `Refusal` at a limit, or if the engine fails."""
        try:
            prompt = self.forest.prompt(request)
            sampling = self._turn_sampling(request, prompt)
        except ContextTooLong as refusal:
            self.note_too_long(refusal)
            raise
        except (ConfigError, TextRefused) as error:  # roles or texts that the model's template cannot hold
            raise Refusal(str(error)) from error
        number, self._begun = self._begun, self._begun + 1
        self._clock.pause()  # the engine may be waiting for the trainer, which is no doing of the agent
        began = time.perf_counter()
        try:
            ids = prompt.ids
            generation = await self._engine.generate(
                ids, replace_seed(sampling, self.episode_id, number), session=self.episode_id
            )
            generation.check(sampling)
            generation = self._until_stop(request, generation)
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled_from_outside(error) or is_ours(error):
                raise
            message = describe_failure(f"{engine_name(self._engine)}.generate", error)
            self.ended_by = Outcome.ENGINE_FAILED, message
            raise Refusal(message, status=500) from error
        finally:
            self._clock.resume()
        reply, info = self._reply(request, generation, len(prompt.ids))
        turn = self.forest.add(prompt, generation, reply.message)
        self.infos[turn.number] = {"continuation": prompt.continuation.value, **info}
        self.last_reply_at = time.perf_counter()
        self.seconds[turn.number] = self.last_reply_at - began
        self.ended_by = self._cut_by(request, generation, sampling)
        self._count_calls(turn, reply)
        return ServedTurn(reply, turn)

    def note_too_long(self, refusal: ContextTooLong) -> None:
        """Without a turn the model has done nothing to make the conversation long: that is a fault."""
        if self._begun >= self._limits.turns:
            self.ended_by = Outcome.TURN_LIMIT, ""
        elif not self.forest.turns:
            self.ended_by = Outcome.ENVIRONMENT_FAILED, str(refusal)
        else:
            self.ended_by = Outcome.TOKEN_LIMIT, ""

    def note_bug(self, error: Exception) -> None:
        """Keep a bug of turnsmith in answering a request, and end the episode with it."""
        self.bug = self.bug or internal_error(error)
        self._clock.run_out()

    def note_refused(self, refusal: Refusal) -> None:
        """Keep its sentence: an agent may catch the error, and go on as if it had never asked."""
        if refusal.status < 500 and (len(self.refused) < _MOST_REFUSED or str(refusal) in self.refused):
            self.refused[str(refusal)] += 1  # what fails here ends the episode

    def count_tokens(self, request: ModelRequest) -> int:
        """The length of a request's prompt."""
        return len(self.forest.prompt(request).ids)

    def add_reward(self, value: float, turn: int | None) -> None:
        """Add a reward to a turn, by its place among those that the agent has received; None: the last one."""
        received = [one.number for one in self.forest.turns if one.is_delivered]
        place = len(received) - 1 if turn is None else turn
        if not 0 <= place < len(received):
            raise Refusal(f"There is no turn {turn}: the model has taken {len(received)} turns.", param="turn")
        total = self.rewards.get(received[place], 0.0) + value
        for what, reward in (("A reward", value), (f"What the rewards of turn {place} add up to", total)):
            _, wrong = to_reward(reward)
            if wrong:
                raise Refusal(f"{what} must be {wrong}.", param="value")
        self.rewards[received[place]] = total

    @property
    def last_message(self) -> str:
        """What the model said last, as the agent got it."""
        return self.forest.turns[-1].reply.content if self.forest.turns else ""

    def note(self, info: dict[str, Any]) -> None:
        """Add what its scoring says of the agent's answer to the last turn."""
        if self.forest.turns:
            self.infos[self.forest.turns[-1].number] |= info

    def to_trajectory(self) -> Trajectory:
        """The record of the episode: a token buffer for each path through its turns."""
        segments = self.forest.segments()
        places = {
            turn.number: TurnRecord(
                start,
                stop,
                turn.generation.stop_reason,
                turn.generation.weights_version,
                self.seconds[turn.number],
                swaps=tuple((start + index, version) for index, version in turn.generation.swaps),
                branch=branch,
            )
            for branch, segment in enumerate(segments)
            for turn, start, stop in segment.spans
        }
        turns = [turn for turn in self.forest.turns if turn.number in places]
        trajectory = Trajectory(
            states=["\n".join(message.content for message in turn.messages[-1:]) for turn in turns],
            actions=[self._chat.text(turn.ids) for turn in turns],
            rewards=[self.rewards.get(turn.number, 0.0) for turn in turns],
            dones=[turn is turns[-1] for turn in turns],
            infos=[self.infos[turn.number] for turn in turns],
            turns=[places[turn.number] for turn in turns],
            branches=[segment.tokens for segment in segments[1:]],
            exact=all(turn.generation.exact for turn in turns),
        )
        if segments:
            trajectory.tokens = segments[0].tokens
        for turn, action in zip(turns, trajectory.actions, strict=True):
            trajectory.messages += [{"role": one.role, "content": one.content} for one in turn.messages]
            trajectory.messages.append({"role": "assistant", "content": action})
        return trajectory

    def _until_stop(self, request: ModelRequest, generation: Generation) -> Generation:
        """The turn up to where the request wants it to end."""
        return generation

    def _turn_sampling(self, request: ModelRequest, prompt: Prompt) -> Sampling:
        """The plan's sampling, within what the limits leave; raises a `ContextTooLong` if they leave nothing."""
        refuse_unless_default({"stop": request.stop or None}, {"stop": None})
        limits, length, opening = self._limits, len(prompt.ids), prompt.opening_length
        if self._begun >= limits.turns:
            advice = f"The episode has used its {limits.turns} turns, of which inference.max_turns allows more."
            raise ContextTooLong(length, self.context, advice)
        if opening > limits.prompt_tokens:
            advice = "inference.max_prompt_tokens allows more before the first assistant message."
            raise ContextTooLong(opening, limits.prompt_tokens, advice)
        left = limits.tokens - (length - opening)
        if left < 1:
            raise ContextTooLong(length, opening + limits.tokens, "inference.max_episode_tokens allows more.")
        wanted = [self._turn_tokens(), left, *([] if request.max_tokens is None else [max(1, request.max_tokens)])]
        return replace(self._sampling, max_tokens=min(wanted))

    def _turn_tokens(self) -> int:
        limit = self._limits.turn_tokens
        return self._sampling.max_tokens if limit is None else limit

    def _cut_by(self, request: ModelRequest, generation: Generation, sampling: Sampling) -> tuple[Outcome, str] | None:
        """The limit of ours that cut a turn short, if one did; the agent decides what to make of half a turn."""
        if generation.stop_reason != "length" or self._chat.is_closed(generation.token_ids):
            return None
        if request.max_tokens is not None and sampling.max_tokens >= request.max_tokens:
            return None
        if sampling.max_tokens < self._turn_tokens():
            return Outcome.TOKEN_LIMIT, ""
        return None if self._limits.turn_tokens is None else (Outcome.TURN_TOKEN_LIMIT, "")

    def _count_calls(self, turn: SampledTurn, reply: ModelReply) -> None:
        limit = self._limits.tool_calls
        self._calls += len(reply.calls)
        if limit is not None and self._calls > limit:
            turn.is_delivered = True  # the model has taken it, though the agent never sees its calls
            self.ended_by = Outcome.TOOL_CALL_LIMIT, ""
            raise ContextTooLong(
                0, 0, f"The episode may make {limit} tool calls; inference.max_tool_calls allows more."
            )

    def _reply(
        self, request: ModelRequest, generation: Generation, prompt_tokens: int
    ) -> tuple[ModelReply, dict[str, Any]]:
        ids, info = list(generation.token_ids), dict[str, Any]()
        text = self._chat.text(ids)
        start = answer_start(text)
        reasoning, answer = (text, "") if start < 0 else (text[:start], text[start:])
        calls: tuple[RequestedCall, ...] = ()
        if request.tools:
            parser = self._parser
            parsed = parser.parse_ids(ids) if isinstance(parser, NativeParser) else parser.parse(text)
            calls = tuple(map(_requested, parsed.calls))
            answer = parsed.text if calls else answer
            if parsed.problem is not None:
                info["format_problem"] = parsed.problem.kind.value
        self._note_wishes(request, info)
        reply = ModelReply(
            id=uuid4().hex,
            text=answer.strip() if reasoning else answer,
            reasoning=reasoning.replace(THINK_START, "").replace(THINK_END, "").strip(),
            calls=calls,
            is_cut=generation.stop_reason == "length" and not self._chat.is_closed(ids),
            prompt_tokens=prompt_tokens,
            completion_tokens=len(ids),
            model=request.model or self.model_name,
            created=int(time.time()),
        )
        return reply, info

    def _note_wishes(self, request: ModelRequest, info: dict[str, Any]) -> None:
        """Record what the agent asked for and did not get: the run's plan decides how the model is sampled."""
        plan = {name: getattr(self._sampling, name) for name in request.sampling}
        other = {name: value for name, value in request.sampling.items() if value != plan[name]}
        if not other and not request.unenforced:
            return
        info["not_applied"] = {**other, **dict.fromkeys(request.unenforced, True)}
        _warn_once(json.dumps(info["not_applied"], sort_keys=True))


def replace_seed(sampling: Sampling, episode_id: str, number: int) -> Sampling:
    """The sampling with a seed of its own for every turn of every episode, the same when the run is repeated.

    Example:
        >>> replace_seed(Sampling(seed=1), "a", 0).seed == replace_seed(Sampling(seed=1), "a", 1).seed
        False
    """
    if sampling.seed is None:
        return sampling
    return replace(sampling, seed=zlib.crc32(f"{sampling.seed}/{episode_id}/{number}".encode()))


def _requested(call: ToolCall) -> RequestedCall:
    return RequestedCall(call.name, json.dumps(call.arguments, ensure_ascii=False), f"call_{uuid4().hex[:24]}")


def _union(stop_token_ids: tuple[int, ...], sampling: Sampling) -> tuple[int, ...]:
    return tuple(dict.fromkeys((*stop_token_ids, *sampling.stop_token_ids)))


_warned: set[str] = set()


def _warn_once(what: str) -> None:
    if what not in _warned and len(_warned) < 100:
        _warned.add(what)
        logger.warning("The agent asked for %s, which is not applied: the run's own sampling settings are used.", what)
