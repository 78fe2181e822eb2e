"""The model's side of one agent episode: samples the turns that the agent asks for, within the episode's limits."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from typing import Any
from uuid import uuid4

from turnsmith.concurrency.clocks import Clock
from turnsmith.errors import ConfigError, EngineFailure, InternalError, TextRefused, internal_error
from turnsmith.gateway.forest import Forest
from turnsmith.gateway.request import (
    ContextTooLong,
    ModelReply,
    ModelRequest,
    Refusal,
    RequestedCall,
    refuse_unless_default,
)
from turnsmith.gateway.turns import Prompt, SampledTurn, ServedTurn
from turnsmith.inference.engine import Engine, Generation, Sampling, engine_name
from turnsmith.rollout.turn_rules import TurnRules
from turnsmith.tools.definition import ToolCall
from turnsmith.tools.parsing import parse_turn
from turnsmith.tools.parsing.base import THINK_END, THINK_START, answer_start
from turnsmith.tools.step_result import to_reward
from turnsmith.trajectory import Outcome, Trajectory, TurnRecord

logger = logging.getLogger(__name__)
_MOST_REFUSED = 20
"""The most different errors that are kept of one episode."""


class AgentSession:
    """Implements `ServedEpisode` for one attempt at an episode."""

    def __init__(self, rules: TurnRules, engine: Engine, clock: Clock) -> None:
        self.rules, self._engine, self._clock = rules, engine, clock
        self.context = rules.limits.context
        self.forest = Forest(rules.chat, rules.parser, context=self.context)
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
        self._begun += 1
        began = time.perf_counter()
        try:
            generation = await self.rules.generate(self._engine, prompt.ids, sampling, self._clock)
        except EngineFailure as error:
            self.ended_by = Outcome.ENGINE_FAILED, str(error)
            raise Refusal(str(error), status=500) from error
        generation = self._until_stop(request, generation)
        reply, info = self._reply(request, generation, len(prompt.ids))
        turn = self.forest.add(prompt, generation, reply.message)
        self.infos[turn.number] = {"continuation": prompt.continuation.value, **info}
        self.last_reply_at = time.perf_counter()
        self.seconds[turn.number] = self.last_reply_at - began
        cut = self.rules.cut_by(generation, sampling, request.max_tokens)  # the agent may go on from a cut turn
        self.ended_by = None if cut is None else (cut, "")
        self._count_calls(turn, reply)
        return ServedTurn(reply, turn)

    def note_too_long(self, refusal: ContextTooLong) -> None:
        """End the episode at the limit. Before the first turn it is a fault: the model has written nothing yet."""
        if self._begun >= self.rules.limits.turns:
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
        received = self.received
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
    def received(self) -> list[int]:
        """The numbers of the turns that the agent has received."""
        return [turn.number for turn in self.forest.turns if turn.is_delivered]

    @property
    def last_message(self) -> str:
        """What the model said last, as the agent got it."""
        return self.forest.turns[-1].reply.content if self.forest.turns else ""

    def add_scoring_info(self, info: dict[str, Any]) -> None:
        """Add what its scoring says of the agent's answer to the last turn."""
        if self.forest.turns:
            self.infos[self.forest.turns[-1].number] |= info

    def to_trajectory(self, reward: float | None = None) -> Trajectory:
        """The record of the episode: a token buffer for each path through its turns. `reward` is added to the last."""
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
            actions=[self.rules.chat.text(turn.ids) for turn in turns],
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
        if turns and self.refused:
            trajectory.infos[-1]["refused"] = dict(self.refused)
        if turns and reward is not None:
            trajectory.rewards[-1] += reward
        elif reward is not None:
            trajectory.score = reward  # there is no turn to put it on
        return trajectory

    def _until_stop(self, request: ModelRequest, generation: Generation) -> Generation:
        """The turn up to where the request wants it to end."""
        return generation

    def _turn_sampling(self, request: ModelRequest, prompt: Prompt) -> Sampling:
        """The plan's sampling, within what the limits leave; raises a `ContextTooLong` if they leave nothing."""
        refuse_unless_default({"stop": request.stop or None}, {"stop": None})
        limits, length, opening = self.rules.limits, len(prompt.ids), prompt.opening_length
        if self._begun >= limits.turns:
            advice = f"The episode has used its {limits.turns} turns, of which inference.max_turns allows more."
            raise ContextTooLong(length, self.context, advice)
        if opening > limits.prompt_tokens:
            advice = "inference.max_prompt_tokens allows more before the first assistant message."
            raise ContextTooLong(opening, limits.prompt_tokens, advice)
        left = limits.tokens - (length - opening)
        if left < 1:
            raise ContextTooLong(length, opening + limits.tokens, "inference.max_episode_tokens allows more.")
        return self.rules.sampling(self._begun, left, request.max_tokens)

    def _count_calls(self, turn: SampledTurn, reply: ModelReply) -> None:
        limit = self.rules.limits.tool_calls
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
        text = self.rules.chat.text(ids)
        start = answer_start(text)
        reasoning, answer = (text, "") if start < 0 else (text[:start], text[start:])
        calls: tuple[RequestedCall, ...] = ()
        if request.tools:
            parsed = parse_turn(self.rules.parser, text, ids)
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
            is_cut=generation.stop_reason == "length" and not self.rules.chat.is_closed(ids),
            prompt_tokens=prompt_tokens,
            completion_tokens=len(ids),
            model=request.model or self.model_name,
            created=int(time.time()),
        )
        return reply, info

    def _note_wishes(self, request: ModelRequest, info: dict[str, Any]) -> None:
        """Record what the agent asked for and did not get: the run's plan decides how the model is sampled."""
        plan = {name: getattr(self.rules.plan, name) for name in request.sampling}
        other = {name: value for name, value in request.sampling.items() if value != plan[name]}
        if not other and not request.unenforced:
            return
        info["not_applied"] = {**other, **dict.fromkeys(request.unenforced, True)}
        _warn_once(json.dumps(info["not_applied"], sort_keys=True))


def _requested(call: ToolCall) -> RequestedCall:
    return RequestedCall(call.name, json.dumps(call.arguments, ensure_ascii=False), f"call_{uuid4().hex[:24]}")


_warned: set[str] = set()


def _warn_once(what: str) -> None:
    if what not in _warned and len(_warned) < 100:
        _warned.add(what)
        logger.warning("The agent asked for %s, which is not applied: the run's own sampling settings are used.", what)
