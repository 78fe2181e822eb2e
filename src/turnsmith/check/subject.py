"""What is checked: an environment, the settings of a run, and the means to play episodes with any policy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from turnsmith.check.byte_chat import ByteChat
from turnsmith.config import ConfigStore
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import EngineFailure, InternalError
from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Engine, Generation, Sampling
from turnsmith.inference.engines.scripted_engine import Reply, ScriptedEngine
from turnsmith.rollout.episode import EpisodeStart, run_attempt
from turnsmith.rollout.limits import Limits
from turnsmith.rollout.players import Players
from turnsmith.rollout.rewards.reward_function import RewardFunction
from turnsmith.rollout.spec import RolloutSpec
from turnsmith.tools.parsing import ActionParser
from turnsmith.tools.registry import ToolRegistry
from turnsmith.trajectory import Outcome, Trajectory

Policy = Callable[[int, str], Reply | Awaitable[Reply]]
"""Gets the number of the turn and the whole prompt as text, and returns the model's turn."""

_NO_LIMIT = 10**9


def _greet(turn: int, prompt: str) -> Reply:
    return "Hello."


class _NoTurn:
    """An engine that takes no turn of the model; it says what other players say, whom `reset` may ask."""

    def __init__(self, for_players: Engine) -> None:
        self.for_players = for_players

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
        """Raise."""
        raise EngineFailure("no turn is taken")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One environment with the settings that it will be trained with.

    Checks play episodes with `play`, by the loop that training uses.
    """

    environment: EnvironmentSpec
    config: ConfigStore
    chat: Chat | ByteChat = field(default_factory=ByteChat)
    """Of the model's tokenizer; without one, episodes are played in bytes, and no limit on tokens applies."""
    engine: Engine | None = None
    """The model, if one is loaded; checks that need it are skipped without."""
    tasks: Sequence[dict[str, Any]] | None = None
    validation_tasks: Sequence[dict[str, Any]] | None = None
    reward_fn: RewardFunction | None = None
    tools: ToolRegistry | None = None
    parser: ActionParser | None = None
    """Reads tool calls, as `inference.tool_format` says; None: `FunctionCallingParser`."""
    model_path: str | None = None
    """The folder of the model, if it is known."""
    success_reward: float | None = None
    episodes: int = 8
    """How many starts a check looks at, where it does not need more."""
    seed: int = 0
    cache: dict[str, Any] = field(default_factory=dict[str, Any], repr=False, compare=False)
    """What one check has played and another can use."""

    @property
    def has_tokenizer(self) -> bool:
        """Whether tokens are those of a model."""
        return not isinstance(self.chat, ByteChat)

    @property
    def is_agent(self) -> bool:
        """Whether an agent with a loop of its own is checked; what it asks the model for is its own business."""
        return any(one.is_agent for one in self.environment.each())

    def starts(self, count: int | None = None) -> list[EpisodeStart]:
        """The first starts of training."""
        return [
            EpisodeStart(
                f"check-{number}",
                f"check-{number}",
                self.seed + number,
                dict(self.tasks[number % len(self.tasks)]) if self.tasks else None,
            )
            for number in range(count or self.episodes)
        ]

    async def play(
        self,
        policy: Policy | Sequence[Reply] | Engine,
        starts: Sequence[EpisodeStart] | None = None,
        *,
        concurrency: int = 8,
        rollout: RolloutSpec | None = None,
    ) -> list[Trajectory]:
        """Play one attempt from each start with a scripted policy or an engine, and return them in the same order."""
        engine = (
            cast("Engine", policy)
            if hasattr(policy, "generate")
            else ScriptedEngine(cast("Policy", policy), self._chat)
        )
        spec, free = rollout or self.rollout(), asyncio.Semaphore(concurrency)

        async def one(start: EpisodeStart) -> Trajectory:
            async with free:
                trajectory = await run_attempt(start, spec, engine, self._chat)
                if trajectory.outcome is Outcome.INTERNAL_ERROR:
                    raise InternalError.read(trajectory.error)  # no finding about the environment
                return trajectory

        return await asyncio.gather(*map(one, self.starts() if starts is None else starts))

    async def openings(
        self, starts: Sequence[EpisodeStart] | None = None, *, rollout: RolloutSpec | None = None
    ) -> list[Trajectory]:
        """Reset from each start, and take no turn: the episodes end where the model would be asked."""
        return await self.play(_NoTurn(self.engine or ScriptedEngine(_greet, self._chat)), starts, rollout=rollout)

    async def first_openings(self) -> list[Trajectory]:
        """The openings of the first starts, played once for all checks."""
        if "openings" not in self.cache:
            self.cache["openings"] = await self.openings()
        return self.cache["openings"]

    def rollout(self, **changes: Any) -> RolloutSpec:
        """How training will play the episodes; `changes` are fields of `RolloutSpec`."""
        inference, limits = self.config.inference, Limits.of(self.config.inference)
        sampling = Sampling(
            inference.max_tokens, inference.temperature, inference.top_p, inference.top_k, seed=self.seed
        )
        if not self.has_tokenizer:
            limits = replace(limits, tokens=_NO_LIMIT, prompt_tokens=_NO_LIMIT, turn_tokens=None)
            sampling = replace(sampling, max_tokens=_NO_LIMIT)
        spec = RolloutSpec(
            environment=self.environment,
            limits=limits,
            sampling=sampling,
            reward_fn=self.reward_fn,
            tools=self.tools,
            parser=self.parser,
            players=Players.of(self.config.players),
        )
        return replace(spec, **changes)

    @property
    def _chat(self) -> Chat:
        return cast("Chat", self.chat)
