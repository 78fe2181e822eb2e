"""One episode, from reset to outcome. Nothing else in turnsmith drives episodes.

This module does not know what generates the tokens, who trains on them, or where the environment runs.
"""

from __future__ import annotations

import asyncio
import math
import time
import zlib
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from turnsmith.env.host import Host, open_host
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import EnvironmentFailure, EnvironmentTimeout, WorkerLost, describe_failure
from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Engine, Generation, Sampling
from turnsmith.rollout.buffer import EpisodeBuffer
from turnsmith.rollout.limits import Limits
from turnsmith.rollout.rewards.reward_function import RewardFailure, RewardFunction, compute_score
from turnsmith.rollout.spec import RolloutSpec
from turnsmith.rollout.turn import EpisodeTools, TurnResult, apply_action, join_prompts
from turnsmith.threads import is_cancelled_from_outside
from turnsmith.tools.parsing import ActionParser, FunctionCallingParser
from turnsmith.tools.registry import ToolRegistry
from turnsmith.trajectory import Outcome, Trajectory

_DEFAULT_PARSER = FunctionCallingParser()


@dataclass(frozen=True, slots=True)
class EpisodeStart:
    """Where an episode begins. Episodes of one group share everything but `episode_id`."""

    episode_id: str
    group_id: str = ""
    seed: int = 0
    task: dict[str, Any] | None = None
    """A row of the dataset, for environments whose `reset` takes `task`."""
    prompt: str = ""
    """Put in front of the first observation."""
    system_prompt: str = ""
    """Put in front of the environment's own system prompt."""


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
) -> Trajectory:
    """Play one episode and record it.

    Tools, `tools` and the environment's own `@tool` methods alike, are offered to the model in the opening prompt, and
    `parser` reads its calls (unless told, `FunctionCallingParser`). A turn with calls gets their results back; a turn
    without any goes to the environment's `step`.

    Never raises (but for cancellation): whatever goes wrong becomes the trajectory's `outcome` and `error`, and what
    was recorded until then is kept. The environment is built for this episode and closed after it.

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
    spec = RolloutSpec(
        environment=environment, limits=limits, sampling=sampling, reward_fn=reward_fn, tools=tools, parser=parser
    )
    return await run_attempt(start, spec, engine, chat)


async def run_attempt(start: EpisodeStart, spec: RolloutSpec, engine: Engine, chat: Chat) -> Trajectory:
    """Play one episode once, as `run_episode` does; `spec.failures` is not used."""
    began = time.perf_counter()
    host = open_host(spec.environment)
    try:
        episode = _Episode(start, spec, host, engine, chat, _with_stops(spec.sampling, chat.stop_token_ids))
        outcome, error = await episode.play()
        # Built only now: while an episode waits for the engine it is only a buffer, which takes less memory.
        trajectory = Trajectory(episode_id=start.episode_id, group_id=start.group_id, seed=start.seed)
        trajectory.outcome, trajectory.error = outcome, error
        episode.draft.write(trajectory, chat)
        if spec.reward_fn is not None and outcome.is_behaviour:
            try:
                seconds = spec.limits.seconds
                trajectory.score = await compute_score(spec.reward_fn, trajectory, host.environment, seconds)
            except RewardFailure as failure:
                trajectory.outcome, trajectory.error = Outcome.REWARD_FAILED, str(failure)
    finally:
        await host.close()
    trajectory.seconds = time.perf_counter() - began
    return trajectory


class _End(Exception):
    """The episode is over."""

    def __init__(self, outcome: Outcome, error: str = "") -> None:
        super().__init__(outcome, error)
        self.outcome = outcome
        self.error = error


@dataclass(slots=True)
class _Episode:
    start: EpisodeStart
    spec: RolloutSpec
    host: Host
    engine: Engine
    chat: Chat
    sampling: Sampling
    draft: EpisodeBuffer = field(default_factory=EpisodeBuffer)
    toolbox: EpisodeTools | None = None
    tool_calls: int = 0
    called_at: float = 0.0
    """When the environment or a tool was called that has not answered yet; 0: none was."""

    async def play(self) -> tuple[Outcome, str]:
        """Run to the end; returns the outcome, and what went wrong if something did."""
        try:
            # One timer for the whole episode; a waiting episode holds no thread.
            async with asyncio.timeout(self.spec.limits.seconds):
                try:
                    await self._open()
                    while True:
                        await self._turn()
                except _End as end:
                    return end.outcome, end.error
        except TimeoutError:
            return self._out_of_time()
        except Exception as error:  # a fault of our own must not cost other episodes either
            return Outcome.ENGINE_FAILED, describe_failure("turnsmith", error)

    def _out_of_time(self) -> tuple[Outcome, str]:
        """A single call that took most of the time stands still; the model has nothing to do with that."""
        waited = time.perf_counter() - self.called_at if self.called_at else 0.0
        if waited <= self.spec.limits.seconds / 2:
            return Outcome.TIME_LIMIT, ""
        what = "step or a tool" if self.draft.turns else "reset"
        return Outcome.ENVIRONMENT_TIMEOUT, f"The environment's {what} did not come back within {waited:.0f} s."

    async def _open(self) -> None:
        """Reset the environment and render the opening prompt."""
        self.called_at = time.perf_counter()
        try:
            observation = await self.host.reset(self.start.seed, self.start.task)
            toolbox = EpisodeTools(self.host.environment, self.spec.tools, self.spec.parser or _DEFAULT_PARSER)
            self.toolbox = toolbox or None
            told = join_prompts(self.start.system_prompt, self.host.prompt_prefix())
            prefix, offered = toolbox.introduce(told, self.chat)
            messages = [{"role": "system", "content": prefix}] if prefix else []
            messages.append({"role": "user", "content": join_prompts(self.start.prompt, observation)})
            self.draft.open(observation, messages)
            prompt = self.chat.open(messages, tools=offered)
        except Exception as error:
            raise _failed_environment(error) from error
        self.called_at = 0.0
        if len(prompt) > self.spec.limits.prompt_tokens:
            raise _End(
                Outcome.ENVIRONMENT_FAILED,
                f"The opening prompt has {len(prompt)} tokens, more than the {self.spec.limits.prompt_tokens} allowed: "
                "shorten the first observation or the system prompt, or raise inference.max_prompt_tokens.",
            )
        self.draft.prompt(prompt)

    async def _turn(self) -> None:
        """One model action and the observation after it; raises `_End` when there is no next turn."""
        draft = self.draft
        reaction = await self._react(*await self._act())
        self.tool_calls += len(reaction.calls)
        draft.hear(reaction)
        if reaction.is_over_limit:
            raise _End(Outcome.TOOL_CALL_LIMIT)
        if reaction.done:
            raise _End(Outcome.COMPLETED if reaction.terminated else Outcome.TRUNCATED)
        if draft.turns >= self.spec.limits.turns:
            raise _End(Outcome.TURN_LIMIT)
        try:
            bridge = self.chat.bridge(reaction.messages, closed=self.chat.is_closed(draft.ids))
        except Exception as error:
            raise _failed_environment(error) from error
        if len(bridge) >= self._tokens_left():  # the model must be able to say at least one token
            raise _End(Outcome.TOKEN_LIMIT)
        draft.go_on(bridge)

    async def _act(self) -> tuple[str, Generation]:
        """Let the model speak and record its tokens; returns them as text too."""
        began = time.perf_counter()
        try:
            sampling = self._sampling()
            said = await self.engine.generate(self.draft.ids, sampling, session=self.start.episode_id)
            _check(said, sampling)
            action = self.chat.text(said.token_ids)
            self.draft.speak(said, time.perf_counter() - began)
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled_from_outside(error):
                raise
            told = describe_failure(f"{_name_of(self.engine)}.generate", error)
            raise _End(Outcome.ENGINE_FAILED, told) from error
        self._check_turn_ended(said, sampling)
        return action, said

    def _check_turn_ended(self, said: Generation, sampling: Sampling) -> None:
        """End the episode if a limit stopped the model in the middle of its turn; half an action is never acted on."""
        if said.stop_reason != "length" or self.chat.is_closed(said.token_ids):
            return
        # An engine that gives less than it was asked for has its own context full. Text alone does not tell how much.
        is_short = said.exact and len(said.token_ids) < sampling.max_tokens
        if is_short or sampling.max_tokens < self._turn_tokens():
            raise _End(Outcome.TOKEN_LIMIT)
        if self.spec.limits.turn_tokens is not None:
            raise _End(Outcome.TURN_TOKEN_LIMIT)

    async def _react(self, action: str, said: Generation) -> TurnResult:
        self.called_at = began = time.perf_counter()
        try:
            reaction = await apply_action(
                action,
                self.host,
                self.toolbox,
                ids=said.token_ids,
                episode_id=self.start.episode_id,
                count=self.chat.encode,
                calls_left=None
                if self.spec.limits.tool_calls is None
                else self.spec.limits.tool_calls - self.tool_calls,
            )
            self.called_at = 0.0
            return reaction
        except Exception as error:
            raise _failed_environment(error) from error
        finally:
            self.draft.wait(time.perf_counter() - began)

    def _tokens_left(self) -> int:
        return self.spec.limits.tokens - (len(self.draft.ids) - self.draft.prompt_length)

    def _turn_tokens(self) -> int:
        """Most tokens of a turn, were the episode's budget endless."""
        return self.sampling.max_tokens if self.spec.limits.turn_tokens is None else self.spec.limits.turn_tokens

    def _sampling(self) -> Sampling:
        sampling, most = self.sampling, min(self._turn_tokens(), self._tokens_left())
        if sampling.seed is None:
            return sampling if most == sampling.max_tokens else replace(sampling, max_tokens=most)
        # Episodes of one group must differ, and so must the turns of one episode; the same run again must not.
        mixed = f"{sampling.seed}/{self.start.episode_id}/{self.draft.turns}"
        return replace(sampling, max_tokens=most, seed=zlib.crc32(mixed.encode()))


def _name_of(engine: Any) -> str:
    """The class that the user knows: an engine of ours that only passes on has another one inside."""
    while hasattr(engine, "inner"):
        engine = engine.inner
    return type(engine).__name__


def _failed_environment(error: Exception) -> _End:
    told = str(error) if isinstance(error, EnvironmentFailure) else describe_failure("The environment", error)
    kinds = {EnvironmentTimeout: Outcome.ENVIRONMENT_TIMEOUT, WorkerLost: Outcome.WORKER_LOST}
    outcome = next((found for kind, found in kinds.items() if isinstance(error, kind)), Outcome.ENVIRONMENT_FAILED)
    return _End(outcome, told)


@lru_cache(maxsize=64)
def _with_stops(sampling: Sampling, stops: tuple[int, ...]) -> Sampling:
    """One object for all episodes that sample alike."""
    return replace(sampling, stop_token_ids=tuple(dict.fromkeys((*stops, *sampling.stop_token_ids))))


def _check(said: Generation, sampling: Sampling) -> None:
    if said.stop_reason == "abort":
        raise ValueError("the engine aborted the turn")
    if not 0 < len(said.token_ids) <= sampling.max_tokens:
        raise ValueError(
            f"the engine gave {len(said.token_ids)} tokens where 1 to {sampling.max_tokens} were asked for"
        )
    if not math.isfinite(sum(said.log_probs)):
        raise ValueError("the engine gave a log-prob that is not a finite number")
