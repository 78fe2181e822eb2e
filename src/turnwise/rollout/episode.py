"""One episode, from reset to outcome. Nothing else in turnwise drives episodes.

This module does not know what generates the tokens, who trains on them, or where the environment runs.
"""

from __future__ import annotations

import asyncio
import math
import time
import zlib
from dataclasses import dataclass, replace
from typing import Any

from turnwise.env.host import EnvironmentHost
from turnwise.env.spec import EnvironmentSpec
from turnwise.errors import EnvironmentFailure, describe_failure
from turnwise.inference.chat import Chat
from turnwise.inference.engine import Engine, Generation, Sampling
from turnwise.rollout.acting import Reaction, Toolbox, join_prompts, react
from turnwise.rollout.limits import Limits
from turnwise.rollout.reward import RewardFailure, RewardFunction, compute_score
from turnwise.threads import is_cancelled_from_outside
from turnwise.tools.parsing import ActionParser, FunctionCallingParser
from turnwise.tools.registry import ToolRegistry
from turnwise.trajectory import Outcome, TokenBuffer, Trajectory, TurnRecord


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
        >>> from turnwise.models import resolve
        >>> from transformers import AutoTokenizer
        >>> from turnwise.env.examples.guess_number import GuessNumber
        >>> from turnwise.inference.scripted import ScriptedEngine
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
    began = time.perf_counter()
    trajectory = Trajectory(episode_id=start.episode_id, group_id=start.group_id, seed=start.seed)
    host = EnvironmentHost(environment)
    episode = _Episode(start, trajectory, host, engine, chat, limits, sampling, tools, parser)
    try:
        await episode.play()
        if reward_fn is not None and trajectory.outcome is not None and trajectory.outcome.is_behaviour:
            try:
                trajectory.score = await compute_score(reward_fn, trajectory, host.environment, limits.seconds)
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
    trajectory: Trajectory
    host: EnvironmentHost
    engine: Engine
    chat: Chat
    limits: Limits
    sampling: Sampling
    tools: ToolRegistry | None = None
    parser: ActionParser | None = None
    toolbox: Toolbox | None = None

    async def play(self) -> None:
        """Run to the end and set the outcome."""
        trajectory = self.trajectory
        stops = tuple(dict.fromkeys((*self.chat.stop_token_ids, *self.sampling.stop_token_ids)))
        self.sampling = replace(self.sampling, stop_token_ids=stops)
        try:
            # One timer for the whole episode; a waiting episode holds no thread.
            async with asyncio.timeout(self.limits.seconds):
                try:
                    observation = await self._open()
                    while True:
                        observation = await self._turn(observation)
                except _End as end:
                    trajectory.outcome, trajectory.error = end.outcome, end.error
        except TimeoutError:
            trajectory.outcome = Outcome.TIME_LIMIT
        except Exception as error:  # a fault of our own must not cost other episodes either
            trajectory.outcome, trajectory.error = Outcome.ENGINE_FAILED, describe_failure("turnwise", error)

    async def _open(self) -> str:
        """Reset the environment and render the opening prompt."""
        trajectory = self.trajectory
        try:
            observation = await self.host.reset(self.start.seed, self.start.task)
            self.toolbox = Toolbox(self.host.environment, self.tools, self.parser or FunctionCallingParser())
            told = join_prompts(self.start.system_prompt, self.host.prompt_prefix())
            prefix, offered = self.toolbox.introduce(told, self.chat)
            if prefix:
                trajectory.messages.append({"role": "system", "content": prefix})
            trajectory.messages.append({"role": "user", "content": join_prompts(self.start.prompt, observation)})
            prompt = self.chat.open(trajectory.messages, tools=offered)
        except Exception as error:
            raise _failed_environment(error) from error
        if len(prompt) > self.limits.prompt_tokens:
            raise _End(
                Outcome.ENVIRONMENT_FAILED,
                f"The opening prompt has {len(prompt)} tokens, more than the {self.limits.prompt_tokens} allowed: "
                "shorten the first observation or the system prompt, or raise inference.max_prompt_tokens.",
            )
        trajectory.tokens.open(prompt)
        return observation

    async def _turn(self, observation: str) -> str:
        """One model action and the observation after it; raises `_End` when there is no next turn."""
        trajectory, tokens = self.trajectory, self.trajectory.tokens
        action = await self._act(observation)
        # Entered before the step, so that the lists keep one entry a turn when the step fails or runs out of time.
        trajectory.rewards.append(0.0)
        trajectory.dones.append(False)
        trajectory.infos.append({})
        reaction = await self._react(action)
        trajectory.rewards[-1] = reaction.reward
        trajectory.dones[-1] = reaction.done
        trajectory.infos[-1] = reaction.info
        trajectory.messages.extend(reaction.messages)
        if reaction.done:
            raise _End(Outcome.COMPLETED if reaction.terminated else Outcome.TRUNCATED)
        if len(trajectory.turns) >= self.limits.turns:
            raise _End(Outcome.TURN_LIMIT)
        try:
            bridge = self.chat.bridge(reaction.messages, closed=self.chat.is_closed(tokens.ids))
        except Exception as error:
            raise _failed_environment(error) from error
        if len(bridge) >= self._tokens_left():  # the model must be able to say at least one token
            raise _End(Outcome.TOKEN_LIMIT)
        tokens.append_context(bridge)
        return "\n".join(message["content"] for message in reaction.messages)

    async def _act(self, observation: str) -> str:
        """Let the model speak and record its tokens."""
        trajectory, tokens = self.trajectory, self.trajectory.tokens
        before, began = len(tokens), time.perf_counter()
        try:
            # The live buffer, not a copy: an engine that keeps it must copy it.
            sampling = self._sampling()
            said = await self.engine.generate(tokens.ids, sampling, session=self.start.episode_id)
            _check(said, sampling)
            span = tokens.append_model(said.token_ids, said.log_probs)
            action = self.chat.text(said.token_ids)
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled_from_outside(error):
                raise
            _cut(tokens, before)
            told = describe_failure(f"{type(self.engine).__name__}.generate", error)
            raise _End(Outcome.ENGINE_FAILED, told) from error
        took = time.perf_counter() - began
        trajectory.turns.append(TurnRecord(*span, said.stop_reason, said.weights_version, took))
        trajectory.states.append(observation)
        trajectory.actions.append(action)
        trajectory.messages.append({"role": "assistant", "content": action})
        return action

    async def _react(self, action: str) -> Reaction:
        began = time.perf_counter()
        try:
            turn = self.trajectory.turns[-1]
            return await react(
                action,
                self.host,
                self.toolbox,
                ids=self.trajectory.tokens.ids[turn.start : turn.stop],
                episode_id=self.start.episode_id,
                count=self.chat.encode,
            )
        except Exception as error:
            raise _failed_environment(error) from error
        finally:
            self.trajectory.turns[-1].step_seconds = time.perf_counter() - began

    def _tokens_left(self) -> int:
        tokens = self.trajectory.tokens
        return self.limits.tokens - (len(tokens.ids) - tokens.prompt_length)

    def _sampling(self) -> Sampling:
        sampling, left = self.sampling, self._tokens_left()
        if sampling.seed is None:
            return sampling if left >= sampling.max_tokens else replace(sampling, max_tokens=left)
        # Episodes of one group must differ, and so must the turns of one episode; the same run again must not.
        mixed = f"{sampling.seed}/{self.start.episode_id}/{len(self.trajectory.turns)}"
        return replace(sampling, max_tokens=min(left, sampling.max_tokens), seed=zlib.crc32(mixed.encode()))


def _failed_environment(error: Exception) -> _End:
    told = str(error) if isinstance(error, EnvironmentFailure) else describe_failure("The environment", error)
    return _End(Outcome.ENVIRONMENT_FAILED, told)


def _cut(tokens: TokenBuffer, length: int) -> None:
    """Take back what an engine's broken answer left in one array and not in the others."""
    del tokens.ids[length:], tokens.log_probs[length:], tokens.mask[length:]


def _check(said: Generation, sampling: Sampling) -> None:
    if said.stop_reason == "abort":
        raise ValueError("the engine aborted the turn")
    if not 0 < len(said.token_ids) <= sampling.max_tokens:
        raise ValueError(
            f"the engine gave {len(said.token_ids)} tokens where 1 to {sampling.max_tokens} were asked for"
        )
    if not math.isfinite(sum(said.log_probs)):
        raise ValueError("the engine gave a log-prob that is not a finite number")
