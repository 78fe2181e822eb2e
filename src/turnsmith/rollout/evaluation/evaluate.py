"""Many episodes of one environment with one engine, all through the one episode loop."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import ConfigError
from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Engine, Sampling
from turnsmith.inference.sync.base import BaseInferenceEngine, run_concurrently
from turnsmith.loop_thread import LoopThread
from turnsmith.rollout.episode import EpisodeStart
from turnsmith.rollout.evaluation.result import EvaluationResult
from turnsmith.rollout.failure_policy import FailurePolicy
from turnsmith.rollout.limits import Limits
from turnsmith.rollout.retry import play_episode
from turnsmith.rollout.rewards.reward_function import RewardFunction
from turnsmith.rollout.spec import RolloutSpec
from turnsmith.tools.parsing import ActionParser
from turnsmith.tools.registry import ToolRegistry
from turnsmith.trajectory import Trajectory

FIRST_SEED = 1_000_000
"""Seed of the first start. Training begins at `training.seed`, 0 unless told: far from it, so that a model is not
evaluated on the starts it was trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    """Which episodes to play, and how.

    Example:
        >>> plan = EvaluationPlan(episodes=4, samples=2, seed=7)
        >>> [(start.group_id, start.episode_id) for start in plan.starts()]
        [('seed-7', 'seed-7-0'), ('seed-7', 'seed-7-1'), ('seed-8', 'seed-8-0'), ('seed-8', 'seed-8-1')]
    """

    episodes: int = 100
    """Episodes in all; a multiple of `samples`."""
    samples: int = 1
    """Episodes from each start, for pass@k."""
    seed: int = FIRST_SEED
    """Seed of the first start; each further start has the next one. Sampling is seeded with it too."""
    seeds: Sequence[int] | None = None
    """The seeds of the starts themselves, in place of `seed` and those after it; begins again after the last."""
    tasks: Sequence[Mapping[str, Any]] | None = None
    """For environments whose `reset` takes `task`: start i gets task i, beginning again after the last."""
    limits: Limits = field(default_factory=Limits)
    sampling: Sampling = field(default_factory=Sampling)
    reward_fn: RewardFunction | None = None
    tools: ToolRegistry | None = None
    parser: ActionParser | None = None
    failures: FailurePolicy = field(default_factory=FailurePolicy)
    """What to do about a fault; an episode that would be dropped is left out. What the model does wrong counts."""
    concurrency: int = 64
    """Episodes at the same time."""
    success_reward: float | None = None
    """The reward that makes an episode a success; None: what the environment's `info` says, else a reward above 0."""

    def __post_init__(self) -> None:
        for name in ("episodes", "samples", "concurrency"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if self.episodes % self.samples:
            near = self.episodes - self.episodes % self.samples
            raise ConfigError(
                f"{self.episodes} episodes cannot be {self.samples} for each start: take "
                f"{f'{near} or ' if near else ''}{near + self.samples}."
            )

    def starts(self) -> list[EpisodeStart]:
        """Where the episodes begin. The same plan gives the same starts and names, so evaluations can be paired."""
        return [
            replace(start, episode_id=f"{start.group_id}-{sample}")
            for start in map(self._start, range(self.episodes // self.samples))
            for sample in range(self.samples)
        ]

    def rollout(self, environment: EnvironmentSpec) -> RolloutSpec:
        """How to play these episodes in an environment; the model's own mistakes always count."""
        sampling = self.sampling if self.sampling.seed is not None else replace(self.sampling, seed=self.seed)
        return RolloutSpec(
            environment=environment,
            limits=self.limits,
            sampling=sampling,
            reward_fn=self.reward_fn,
            tools=self.tools,
            parser=self.parser,
            failures=self.failures.for_evaluation(),
        )

    def result(self, finished: Iterable[Trajectory], seconds: float = 0.0) -> EvaluationResult:
        """What the episodes that have ended say; in the order of the starts, whichever ended first."""
        place = {start.episode_id: number for number, start in enumerate(self.starts())}
        ordered = sorted(finished, key=lambda trajectory: place.get(trajectory.episode_id, len(place)))
        return EvaluationResult(ordered, self.success_reward, seconds)

    def _start(self, number: int) -> EpisodeStart:
        seed, task = self.seeds[number % len(self.seeds)] if self.seeds else self.seed + number, None
        name = f"seed-{seed}"
        if self.tasks:
            task = dict(self.tasks[number % len(self.tasks)])
            told = json.dumps(task, sort_keys=True, default=str)
            name += f"-task-{zlib.crc32(told.encode()):08x}"
        return EpisodeStart("", name, seed, task)


async def run_evaluation(
    environment: Any,
    engine: Engine | BaseInferenceEngine,
    chat: Chat | None = None,
    plan: EvaluationPlan | None = None,
    *,
    on_episode: Callable[[Trajectory], None] = lambda trajectory: None,
    starts: Sequence[EpisodeStart] | None = None,
) -> EvaluationResult:
    """Play the episodes of a plan, `plan.concurrency` at a time; a failing episode costs nothing but itself.

    Args:
        environment: A class, `module:Name`, an object or a spec.
        engine: What generates, or its synchronous face.
        chat: The chat side of the engine's tokenizer; a face brings its own.
        plan: Which episodes, and how.
        on_episode: Called with each episode as it ends. After a cancellation this is all there is.
        starts: Only these of `plan.starts()`, where several processes share an evaluation.
    """
    plan = plan or EvaluationPlan()
    found, chat = _parts(engine, chat)
    spec, began = plan.rollout(EnvironmentSpec.of(environment)), time.perf_counter()
    starts = plan.starts() if starts is None else starts

    async def play(place: int) -> Trajectory:
        trajectory = (await play_episode(starts[place], spec, found, chat)).trajectory
        on_episode(trajectory)
        return trajectory

    trajectories = await run_concurrently(play, len(starts), plan.concurrency)
    return EvaluationResult(trajectories, plan.success_reward, time.perf_counter() - began)


def evaluate(
    environment: Any,
    engine: Engine | BaseInferenceEngine,
    chat: Chat | None = None,
    plan: EvaluationPlan | None = None,
    *,
    on_episode: Callable[[Trajectory], None] = lambda trajectory: None,
) -> EvaluationResult:
    """`run_evaluation` for plain synchronous code; Ctrl-C ends the episodes that are running and is raised.

    Example:
        >>> from transformers import AutoTokenizer
        >>> from turnsmith import Chat, ScriptedEngine
        >>> from turnsmith.env.examples import GuessNumber
        >>> from turnsmith.models import resolve
        >>> chat = Chat(AutoTokenizer.from_pretrained(resolve("tiny")))
        >>> plan = EvaluationPlan(episodes=16, seed=0, limits=Limits(turns=1))
        >>> result = evaluate(GuessNumber, ScriptedEngine(["13"], chat), chat, plan)
        >>> result.success
        Estimate(value=0.0625, low=0.0111..., high=0.2832...)
        >>> dict(result.report.outcomes)
        {'completed': 1, 'turn_limit': 15}
    """
    work = run_evaluation(environment, engine, chat, plan, on_episode=on_episode)
    if isinstance(engine, BaseInferenceEngine):
        return engine.run(work)  # on the loop that the face's other calls use, so that all are batched together
    loop = LoopThread("turnsmith-evaluation")
    try:
        return loop.run(work)
    finally:
        loop.close()


def _parts(engine: Engine | BaseInferenceEngine, chat: Chat | None) -> tuple[Engine, Chat]:
    if isinstance(engine, BaseInferenceEngine):
        return engine.engine, chat or engine.chat
    if chat is None:
        raise ConfigError("The engine brings no chat template: pass chat=Chat(tokenizer).")
    return engine, chat
