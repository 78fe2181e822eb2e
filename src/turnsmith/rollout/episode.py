"""One episode, from reset to outcome. Nothing else in turnsmith drives episodes.

This module does not know what generates the tokens, who trains on them, or where the environment runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from turnsmith.concurrency.clocks import Clock, OutOfTime
from turnsmith.env.asking import answer_with
from turnsmith.env.host import Host, open_host
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import EngineFailure, EnvironmentFailure, internal_error, is_bug
from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Engine, Generation, Sampling
from turnsmith.rollout.agent_episode import AgentPlayer
from turnsmith.rollout.attempt import (
    EpisodeStart,
    failure_outcome,
    finish_reward,
    in_mix,
    score_trajectory,
)
from turnsmith.rollout.buffer import EpisodeBuffer
from turnsmith.rollout.episode_players import EpisodePlayers
from turnsmith.rollout.players import Players
from turnsmith.rollout.rewards.reward_function import RewardFunction
from turnsmith.rollout.spec import Limits, RolloutSpec, check_tools
from turnsmith.rollout.turn import EpisodeTools, TurnResult, apply_action, join_prompts
from turnsmith.rollout.turn_rules import TurnRules
from turnsmith.tools.parsing import ActionParser
from turnsmith.tools.registry import ToolRegistry
from turnsmith.trajectory import Outcome, Trajectory


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
    tools. `players` says who answers when the environment asks another player.

    Never raises, except when cancelled, or for a tool of another environment: a failure becomes the trajectory's
    `outcome` and `error`, and what was recorded until then is kept. The environment is built for this episode and
    closed after it.

    Example:
        >>> import asyncio
        >>> from turnsmith.inference.models import resolve
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
    try:
        trajectory = await _attempt(start, spec, engine, chat)
        finish_reward(trajectory, reward_range=None if member is None else member.reward_range)
    except Exception as error:  # not even the record of the episode could be made
        if not is_bug(error):
            raise
        trajectory = _begun(start, Trajectory(outcome=Outcome.INTERNAL_ERROR, error=internal_error(error).text))
    return trajectory


class _Player(Protocol):
    """One way to play an episode; `run_attempt` does what is the same in all of them."""

    async def play(self) -> tuple[Outcome, str]:
        """Run to the end; return the outcome and, after a failure, the error message."""
        ...

    def to_trajectory(self) -> Trajectory:
        """The record of the episode."""
        ...


async def _attempt(start: EpisodeStart, spec: RolloutSpec, engine: Engine, chat: Chat) -> Trajectory:
    began = time.perf_counter()
    host, clock = open_host(spec.environment), Clock(spec.limits.seconds)
    rules = TurnRules.of(start.episode_id, chat, limits=spec.limits, sampling=spec.sampling, parser=spec.parser)
    play: Callable[..., _Player] = AgentPlayer if spec.environment.is_agent else EnvironmentPlayer
    player = play(start, spec, host, engine, rules, clock)
    try:
        outcome, error = await player.play()
        # Built only now: an episode that waits for the engine is just a buffer, which takes less memory.
        trajectory = _begun(start, player.to_trajectory())
        trajectory.outcome, trajectory.error = outcome, error
        if outcome.is_behaviour:
            await score_trajectory(trajectory, spec, host, clock.waits)
    finally:
        await host.close()
    trajectory.seconds = time.perf_counter() - began
    trajectory.waits = {str(bottleneck): seconds for bottleneck, seconds in clock.waits.items()}
    return trajectory


def _begun(start: EpisodeStart, trajectory: Trajectory) -> Trajectory:
    """The record, with where the episode began."""
    trajectory.episode_id, trajectory.group_id, trajectory.seed = start.episode_id, start.group_id, start.seed
    trajectory.environment, trajectory.task = start.environment, start.task
    return trajectory


@dataclass(slots=True)
class EnvironmentPlayer:
    """Plays an environment's episode: the model's turn, then the environment's or the tools' answer."""

    start: EpisodeStart
    spec: RolloutSpec
    host: Host
    engine: Engine
    rules: TurnRules
    clock: Clock
    """The time limit; it stands still while the engine has the turn, and while a call waits for its own."""
    buffer: EpisodeBuffer = field(default_factory=EpisodeBuffer)
    tools: EpisodeTools | None = None
    tool_calls: int = 0
    others: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """See `Trajectory.others`."""
    called_at: float | None = None
    """When the current call to environment or tool began, less what the episode had waited; None: there is none."""

    async def play(self) -> tuple[Outcome, str]:
        """Run to the end; return the outcome and, after a failure, the error message."""
        players = EpisodePlayers(self.spec.players, self.start, self.engine, self.rules.chat, self.spec.sampling)
        self.others = players.counts
        answer_with(players.ask)
        try:
            # One timer for the whole episode; a waiting episode holds no thread.
            async with self.clock:
                await self._reset()
                while (end := await self._play_turn()) is None:
                    pass
            return end, ""
        except OutOfTime:
            in_call = 0.0 if self.called_at is None else time.perf_counter() - self.clock.waited - self.called_at
            call = "step or a tool" if self.buffer.turns else "reset"
            return self.rules.timed_out(in_call, f"The environment's {call} did not return")
        except EngineFailure as error:
            return Outcome.ENGINE_FAILED, str(error)
        except Exception as error:  # the one place that tells a failing environment from a bug of ours
            return failure_outcome(error)

    def to_trajectory(self) -> Trajectory:
        """The record of the episode."""
        trajectory = self.buffer.to_trajectory(self.rules.chat)
        trajectory.others = self.others
        return trajectory

    async def _reset(self) -> None:
        """Reset the environment and render the opening prompt."""
        chat, limit = self.rules.chat, self.rules.limits.prompt_tokens
        self.called_at = time.perf_counter() - self.clock.waited
        observation = await self.host.reset(self.start.seed, self.start.task)
        tools = EpisodeTools(self.host, self.spec.tools, self.rules.parser)
        self.tools = tools or None
        system_prompt = join_prompts(self.start.system_prompt, self.host.prompt_prefix())
        system_prompt, schemas = tools.prompt_and_schemas(system_prompt, chat)
        messages = [{"role": "system", "content": system_prompt}] if system_prompt else []
        messages += [{"role": speaker, "content": text} for speaker, text in self.host.examples]
        messages.append({"role": "user", "content": join_prompts(self.start.prompt, observation)})
        self.buffer.set_opening(observation, messages)
        prompt = chat.open(messages, tools=schemas)
        self.called_at = None
        if len(prompt) > limit:
            raise EnvironmentFailure(
                f"The opening prompt has {len(prompt)} tokens, more than the {limit} allowed: "
                "shorten the first observation or the system prompt, or raise inference.max_prompt_tokens."
            )
        self.buffer.set_prompt(prompt)

    async def _play_turn(self) -> Outcome | None:
        """One turn of the model and the answer to it; returns how the episode ends, or None if it goes on."""
        generation, cut = await self._generate()
        if cut is not None:  # half an action is never applied
            return cut
        result = await self._apply_action(generation)
        self.tool_calls += len(result.calls)
        self.buffer.append_result(result)
        if result.is_over_limit:
            return Outcome.TOOL_CALL_LIMIT
        if result.done:
            return Outcome.COMPLETED if result.terminated else Outcome.TRUNCATED
        if self.buffer.turns >= self.rules.limits.turns:
            return Outcome.TURN_LIMIT
        bridge = self.rules.chat.bridge(result.messages, closed=self.rules.chat.is_closed(self.buffer.ids))
        if len(bridge) >= self._tokens_left():  # the next turn needs at least one token
            return Outcome.TOKEN_LIMIT
        self.buffer.append_bridge(bridge)
        return None

    async def _generate(self) -> tuple[Generation, Outcome | None]:
        """Sample the model's turn and record it; return its tokens, and the limit that cut it short."""
        if self.clock.expired:  # the environment did not let itself be cancelled
            raise OutOfTime
        began = time.perf_counter()
        sampling = self.rules.sampling(self.buffer.turns, self._tokens_left())
        generation = await self.rules.generate(self.engine, self.buffer.ids, sampling, self.clock)
        self.buffer.append_turn(generation, time.perf_counter() - began)
        return generation, self.rules.cut_by(generation, sampling)

    async def _apply_action(self, generation: Generation) -> TurnResult:
        limit = self.rules.limits.tool_calls
        action = self.rules.chat.text(generation.token_ids)
        began = time.perf_counter()
        self.called_at = began - self.clock.waited
        try:
            result = await apply_action(
                action,
                self.host,
                self.tools,
                ids=generation.token_ids,
                episode_id=self.start.episode_id,
                count=self.rules.chat.encode,
                calls_left=None if limit is None else limit - self.tool_calls,
            )
            self.called_at = None
            return result
        finally:
            self.buffer.set_step_seconds(time.perf_counter() - began)

    def _tokens_left(self) -> int:
        return self.rules.limits.tokens - (len(self.buffer.ids) - self.buffer.prompt_length)
