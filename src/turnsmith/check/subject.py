"""What is checked: an environment, the settings of a run, and the means to play episodes with any policy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from turnsmith.config import ConfigStore
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Engine
from turnsmith.inference.engines.scripted_engine import Reply, ScriptedEngine
from turnsmith.rollout.episode import EpisodeStart, run_attempt
from turnsmith.rollout.limits import Limits
from turnsmith.rollout.rewards.reward_function import RewardFunction
from turnsmith.rollout.spec import RolloutSpec
from turnsmith.tools.registry import ToolRegistry
from turnsmith.trajectory import Trajectory

Policy = Callable[[int, str], Reply | Awaitable[Reply]]
"""Gets the number of the turn and the whole prompt as text, and returns the model's turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One environment with the settings that it will be trained with.

    Checks play episodes with `play`, by the loop that training uses.
    """

    environment: EnvironmentSpec
    config: ConfigStore
    chat: Chat
    engine: Engine | None = None
    """The model, if one is loaded; checks that need it are skipped without."""
    tasks: Sequence[dict[str, Any]] | None = None
    validation_tasks: Sequence[dict[str, Any]] | None = None
    reward_fn: RewardFunction | None = None
    tools: ToolRegistry | None = None
    success_reward: float | None = None
    episodes: int = 8
    """How many starts a check looks at, where it does not need more."""
    seed: int = 0

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
            cast("Engine", policy) if hasattr(policy, "generate") else ScriptedEngine(cast("Policy", policy), self.chat)
        )
        spec, free = rollout or self.rollout(), asyncio.Semaphore(concurrency)

        async def one(start: EpisodeStart) -> Trajectory:
            async with free:
                return await run_attempt(start, spec, engine, self.chat)

        return await asyncio.gather(*map(one, self.starts() if starts is None else starts))

    def rollout(self, **changes: Any) -> RolloutSpec:
        """How training will play the episodes; `changes` are fields of `RolloutSpec`."""
        spec = RolloutSpec(
            environment=self.environment,
            limits=Limits.of(self.config.inference),
            reward_fn=self.reward_fn,
            tools=self.tools,
        )
        return replace(spec, **changes)
