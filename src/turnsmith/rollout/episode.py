"""One episode, from reset to outcome. Nothing else in turnsmith drives episodes.

This module does not know what generates the tokens, who trains on them, or where the environment runs.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from dataclasses import dataclass, field, replace
from functools import lru_cache

from turnsmith.clocks import Clock, OutOfTime
from turnsmith.env.asking import answer_with
from turnsmith.env.host import Host, open_host
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import describe_failure
from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Engine, Generation, Sampling, engine_name
from turnsmith.internal_errors import internal_error, is_bug, is_ours
from turnsmith.rollout.agent_episode import run_agent_attempt
from turnsmith.rollout.attempt import (
    EpisodeStart,
    check_rewards,
    failure_outcome,
    in_mix,
    score_trajectory,
    to_common_scale,
)
from turnsmith.rollout.buffer import EpisodeBuffer
from turnsmith.rollout.episode_players import EpisodePlayers
from turnsmith.rollout.limits import Limits
from turnsmith.rollout.players import Players
from turnsmith.rollout.rewards.reward_function import RewardFunction
from turnsmith.rollout.spec import RolloutSpec, check_tools
from turnsmith.rollout.turn import EpisodeTools, TurnResult, apply_action, join_prompts
from turnsmith.threads import is_cancelled_from_outside, shared_threads
from turnsmith.tools.parsing import ActionParser, FunctionCallingParser
from turnsmith.tools.registry import ToolRegistry
from turnsmith.trajectory import Outcome, Trajectory

_DEFAULT_PARSER = FunctionCallingParser()


async def run_episode(
    start: EpisodeStart,
    *,
    environment: EnvironmentSpec,
    engine: Engine,
    chat: Chat,
    limits: Limits,
    sampling: Sampling,
    reward_fn: RewardFunction | None = None,
    tools: ToolRegistry | None = None,
    parser: ActionParser | None = None,
    players: Players | None = None,
) -> Trajectory:
    """Play one episode and record it.

    The opening prompt offers the model `tools` and the environment's own `@tool` methods; `parser`
    (`FunctionCallingParser` by default) reads the calls in its turns. A turn with tool calls is answered with their
    results, any other turn goes to the environment's `step`. An agent, `solve(task, model)`, has its own loop and
    tools. `players` are those whom the environment asks.

    Never raises, except when cancelled, or for a tool of another environment: a failure becomes the trajectory's
    `outcome` and `error`, and what was recorded until then is kept. The environment is built for this episode and
    closed after it.

    Example:
        >>> from turnsmith.models import resolve
        >>> from transformers import AutoTokenizer
        >>> from turnsmith.env.examples.guess_number import GuessNumber
        >>> from turnsmith.inference.engines.scripted_engine import ScriptedEngine
        >>> chat = Chat(AutoTokenizer.from_pretrained(resolve("tiny")))
        >>> trajectory = asyncio.run(
        ...     run_episode(
        ...         EpisodeStart("episode-1", seed=5),
        ...         environment=EnvironmentSpec.of(GuessNumber),
        ...         engine=ScriptedEngine(["8", "12", "9"], chat),
        ...         chat=chat,
        ...         limits=Limits(),
        ...         sampling=Sampling(),
        ...     )
        ... )
        >>> trajectory.outcome.value, trajectory.states[1:], trajectory.rewards
        ('completed', ['Higher than 8.', 'Lower than 12.'], [0.0, 0.0, 1.0])
    """
    check_tools(environment, tools)
    spec = RolloutSpec(
        environment=environment,
        limits=limits,
        sampling=sampling,
        reward_fn=reward_fn,
        tools=tools,
        parser=parser,
        players=players or Players(),
    )
    return await run_attempt(start, spec, engine, chat)


async def run_attempt(start: EpisodeStart, spec: RolloutSpec, engine: Engine, chat: Chat) -> Trajectory:
    """Play one episode once, as `run_episode` does; `spec.failures` is not used."""
    start, spec, member = in_mix(start, spec)
    play = run_agent_attempt if spec.environment.is_agent else _run_environment_attempt
    try:
        trajectory = await play(start, spec, engine, chat)
        if member is not None and member.reward_range is not None:
            to_common_scale(trajectory, member.reward_range)
        check_rewards(trajectory)
        return trajectory
    except Exception as error:  # not even the record of the episode could be made
        if not is_bug(error):
            raise
        trajectory = Trajectory(outcome=Outcome.INTERNAL_ERROR, error=internal_error(error).text)
        trajectory.episode_id, trajectory.group_id, trajectory.seed = start.episode_id, start.group_id, start.seed
        trajectory.environment, trajectory.task = start.environment, start.task
        return trajectory


async def _run_environment_attempt(start: EpisodeStart, spec: RolloutSpec, engine: Engine, chat: Chat) -> Trajectory:
    began = time.perf_counter()
    host = open_host(spec.environment)
    shared_threads().allow(spec.environment.threads)
    others = EpisodePlayers(spec.players, start, engine, chat, spec.sampling)
    answer_with(others.ask)
    try:
        episode = _Episode(start, spec, host, engine, chat, _with_stop_tokens(spec.sampling, chat.stop_token_ids))
        outcome, error = await episode.play()
        # Built only now: an episode that waits for the engine is just a buffer, which takes less memory.
        trajectory = episode.buffer.to_trajectory(chat)
        trajectory.episode_id, trajectory.group_id, trajectory.seed = start.episode_id, start.group_id, start.seed
        trajectory.environment, trajectory.outcome, trajectory.error = start.environment, outcome, error
        trajectory.task = start.task
        trajectory.others = others.counts
        if spec.reward_fn is not None and outcome.is_behaviour:
            await score_trajectory(trajectory, spec, host, episode.clock.waits)
    finally:
        await host.close()
    trajectory.seconds = time.perf_counter() - began
    trajectory.waits = {str(bottleneck): seconds for bottleneck, seconds in episode.clock.waits.items()}
    return trajectory


class _End(Exception):
    """Raised where the episode ends."""

    def __init__(self, outcome: Outcome, error: str = "") -> None:
        super().__init__(outcome, error)
        self.outcome, self.error = outcome, error


@dataclass(slots=True)
class _Episode:
    start: EpisodeStart
    spec: RolloutSpec
    host: Host
    engine: Engine
    chat: Chat
    sampling: Sampling
    buffer: EpisodeBuffer = field(default_factory=EpisodeBuffer)
    tools: EpisodeTools | None = None
    tool_calls: int = 0
    clock: Clock = field(init=False)
    """The time limit; it stands still while the engine has the turn, and while a call waits for its own."""
    called_at: float | None = None
    """When the current call to environment or tool began, less what the episode had waited; None: there is none."""

    async def play(self) -> tuple[Outcome, str]:
        """Run to the end; return the outcome and, after a failure, the error message."""
        try:
            # One timer for the whole episode; a waiting episode holds no thread.
            self.clock = Clock(self.spec.limits.seconds)
            async with self.clock:
                await self._reset()
                while True:
                    await self._run_turn()
        except _End as end:
            return end.outcome, end.error
        except OutOfTime:
            return self._time_out()
        except Exception as error:  # the one place that tells a failing environment from a bug of ours
            return failure_outcome(error)

    def _time_out(self) -> tuple[Outcome, str]:
        """The time limit is the model's doing unless one call has taken most of the time: then that call hangs."""
        took = 0.0 if self.called_at is None else time.perf_counter() - self.clock.waited - self.called_at
        if took <= self.spec.limits.seconds / 2:
            return Outcome.TIME_LIMIT, ""
        call = "step or a tool" if self.buffer.turns else "reset"
        return Outcome.ENVIRONMENT_TIMEOUT, f"The environment's {call} did not return within {took:.0f} s."

    async def _reset(self) -> None:
        """Reset the environment and render the opening prompt."""
        self.called_at = time.perf_counter() - self.clock.waited
        observation = await self.host.reset(self.start.seed, self.start.task)
        tools = EpisodeTools(self.host, self.spec.tools, self.spec.parser or _DEFAULT_PARSER)
        self.tools = tools or None
        system_prompt = join_prompts(self.start.system_prompt, self.host.prompt_prefix())
        system_prompt, schemas = tools.prompt_and_schemas(system_prompt, self.chat)
        messages = [{"role": "system", "content": system_prompt}] if system_prompt else []
        messages += [{"role": speaker, "content": text} for speaker, text in self.host.examples]
        messages.append({"role": "user", "content": join_prompts(self.start.prompt, observation)})
        self.buffer.set_opening(observation, messages)
        prompt = self.chat.open(messages, tools=schemas)
        self.called_at = None
        if len(prompt) > self.spec.limits.prompt_tokens:
            raise _End(
                Outcome.ENVIRONMENT_FAILED,
                f"The opening prompt has {len(prompt)} tokens, more than the {self.spec.limits.prompt_tokens} allowed: "
                "shorten the first observation or the system prompt, or raise inference.max_prompt_tokens.",
            )
        self.buffer.set_prompt(prompt)

    async def _run_turn(self) -> None:
        """Run one turn of the model and the environment's answer; raises `_End` if there is no next turn."""
        buffer, limits = self.buffer, self.spec.limits
        result = await self._apply_action(*await self._generate())
        self.tool_calls += len(result.calls)
        buffer.append_result(result)
        if result.is_over_limit:
            raise _End(Outcome.TOOL_CALL_LIMIT)
        if result.done:
            raise _End(Outcome.COMPLETED if result.terminated else Outcome.TRUNCATED)
        if buffer.turns >= limits.turns:
            raise _End(Outcome.TURN_LIMIT)
        bridge = self.chat.bridge(result.messages, closed=self.chat.is_closed(buffer.ids))
        if len(bridge) >= self._tokens_left():  # the next turn needs at least one token
            raise _End(Outcome.TOKEN_LIMIT)
        buffer.append_bridge(bridge)

    async def _generate(self) -> tuple[str, Generation]:
        """Sample the model's turn and record it; return its text and its tokens."""
        if self.clock.expired:  # the environment did not let itself be cancelled
            raise OutOfTime
        began = time.perf_counter()
        sampling = self._turn_sampling()
        try:
            generation = await self._ask_engine(sampling)
            generation.check(sampling)
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled_from_outside(error) or is_ours(error):
                raise
            message = describe_failure(f"{engine_name(self.engine)}.generate", error)
            raise _End(Outcome.ENGINE_FAILED, message) from error
        action = self.chat.text(generation.token_ids)
        self.buffer.append_turn(generation, time.perf_counter() - began)
        self._check_turn_ended(generation, sampling)
        return action, generation

    async def _ask_engine(self, sampling: Sampling) -> Generation:
        """Stops the clock: the engine may be waiting for the trainer, which is no doing of the model."""
        self.clock.pause()
        try:
            return await self.engine.generate(self.buffer.ids, sampling, session=self.start.episode_id)
        finally:
            self.clock.resume()

    def _check_turn_ended(self, generation: Generation, sampling: Sampling) -> None:
        """End the episode if a limit cut the model's turn short: half an action is never applied."""
        if generation.stop_reason != "length" or self.chat.is_closed(generation.token_ids):
            return
        # Fewer tokens than allowed: the engine's context is full. If it returns only text, the count says nothing.
        is_short = generation.exact and len(generation.token_ids) < sampling.max_tokens
        if is_short or sampling.max_tokens < self._turn_tokens():
            raise _End(Outcome.TOKEN_LIMIT)
        if self.spec.limits.turn_tokens is not None:
            raise _End(Outcome.TURN_TOKEN_LIMIT)

    async def _apply_action(self, action: str, generation: Generation) -> TurnResult:
        limit = self.spec.limits.tool_calls
        began = time.perf_counter()
        self.called_at = began - self.clock.waited
        try:
            result = await apply_action(
                action,
                self.host,
                self.tools,
                ids=generation.token_ids,
                episode_id=self.start.episode_id,
                count=self.chat.encode,
                calls_left=None if limit is None else limit - self.tool_calls,
            )
            self.called_at = None
            return result
        finally:
            self.buffer.set_step_seconds(time.perf_counter() - began)

    def _tokens_left(self) -> int:
        return self.spec.limits.tokens - (len(self.buffer.ids) - self.buffer.prompt_length)

    def _turn_tokens(self) -> int:
        """The token limit of a turn, apart from the episode's budget."""
        limit = self.spec.limits.turn_tokens
        return self.sampling.max_tokens if limit is None else limit

    def _turn_sampling(self) -> Sampling:
        sampling, max_tokens = self.sampling, min(self._turn_tokens(), self._tokens_left())
        if sampling.seed is None:
            return sampling if max_tokens == sampling.max_tokens else replace(sampling, max_tokens=max_tokens)
        # A seed of its own for every turn of every episode, and the same ones when the run is repeated.
        mixed = f"{sampling.seed}/{self.start.episode_id}/{self.buffer.turns}"
        return replace(sampling, max_tokens=max_tokens, seed=zlib.crc32(mixed.encode()))


@lru_cache(maxsize=64)
def _with_stop_tokens(sampling: Sampling, stop_token_ids: tuple[int, ...]) -> Sampling:
    """Cached, so that episodes with the same settings share one object."""
    return replace(sampling, stop_token_ids=tuple(dict.fromkeys((*stop_token_ids, *sampling.stop_token_ids))))
