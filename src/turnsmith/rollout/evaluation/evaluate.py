"""Evaluate an engine in an environment: many episodes, all played by the loop that training uses."""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from turnsmith.concurrency.loop_thread import LoopThread
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import ConfigError, EnvironmentFailure, bugs_named
from turnsmith.inference.chat import Chat
from turnsmith.inference.engine import Engine, Sampling
from turnsmith.inference.sync.base import BaseInferenceEngine, run_concurrently
from turnsmith.rollout.episode import EpisodeStart
from turnsmith.rollout.evaluation.result import EvaluationResult
from turnsmith.rollout.failure_policy import FailurePolicy
from turnsmith.rollout.players import Players
from turnsmith.rollout.retry import check_not_stopped, play_episode
from turnsmith.rollout.same_failure import SameFailure
from turnsmith.rollout.spec import EpisodeParts, Limits, RolloutSpec, check_tools
from turnsmith.trajectory import Trajectory

FIRST_SEED = 1_000_000
"""Seed of the first start, far from `training.seed` (0 by default): a model is not evaluated on the starts that it was
trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan(EpisodeParts):
    """Which episodes to play, and how.

    Example:
        >>> plan = EvaluationPlan(episodes=4, samples=2, seed=7)
        >>> [(start.group_id, start.episode_id) for start in plan.starts()]
        [('seed-7', 'seed-7-0'), ('seed-7', 'seed-7-1'), ('seed-8', 'seed-8-0'), ('seed-8', 'seed-8-1')]
    """

    episodes: int = 100
    """Total number of episodes; a multiple of `samples`."""
    samples: int = 1
    """Episodes per start, for pass@k."""
    seed: int = FIRST_SEED
    """Seed of the first start; the following starts count up from it. Also the sampling seed, if that is not set."""
    seeds: Sequence[int] | None = None
    """Seeds of the starts, instead of counting up from `seed`; repeated as often as needed."""
    tasks: Sequence[Mapping[str, Any] | None] | None = None
    """For environments whose `reset` takes `task`: start i gets task i; repeated as often as needed."""
    environments: Sequence[str] | None = None
    """For a mix: start i is played in environment i; None: the seeds decide."""
    limits: Limits = field(default_factory=Limits)
    sampling: Sampling = field(default_factory=Sampling)
    players: Players = field(default_factory=Players)
    """Who plays the other players that the environment asks."""
    failures: FailurePolicy = field(default_factory=FailurePolicy)
    """What to do after a fault; a dropped episode is left out. Mistakes of the model always count."""
    concurrency: int = 64
    """Episodes that run at the same time."""
    success_reward: float | None = None
    """An episode with at least this reward is a success; None: see `EvaluationResult.has_success_info`."""

    def __post_init__(self) -> None:
        for name in ("episodes", "samples", "concurrency"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if self.episodes % self.samples:
            above = self.episodes + self.samples - self.episodes % self.samples
            raise ConfigError(
                f"episodes is {self.episodes}; it must be a multiple of samples, which is {self.samples}: try {above}."
            )

    def starts(self) -> list[EpisodeStart]:
        """Where the episodes begin. The same plan gives the same starts and ids, so that evaluations can be paired."""
        return [
            replace(start, episode_id=f"{start.group_id}-{sample}")
            for start in map(self._start, range(self.episodes // self.samples))
            for sample in range(self.samples)
        ]

    def rollout(self, environment: EnvironmentSpec) -> RolloutSpec:
        """How to play the episodes in an environment."""
        check_tools(environment, self.tools)
        sampling = self.sampling if self.sampling.seed is not None else replace(self.sampling, seed=self.seed)
        return RolloutSpec(
            environment=environment,
            limits=self.limits,
            sampling=sampling,
            players=self.players.for_evaluation(),
            failures=self.failures.for_evaluation(),
            **self.parts(),
        )

    def result(self, finished: Iterable[Trajectory], seconds: float = 0.0) -> EvaluationResult:
        """The result of finished episodes, sorted by start."""
        order = {start.episode_id: number for number, start in enumerate(self.starts())}
        ordered = sorted(finished, key=lambda trajectory: order.get(trajectory.episode_id, len(order)))
        return EvaluationResult(ordered, self.success_reward, seconds)

    def _start(self, number: int) -> EpisodeStart:
        seed, task = self.seeds[number % len(self.seeds)] if self.seeds else self.seed + number, None
        name = f"seed-{seed}"
        environment = self.environments[number % len(self.environments)] if self.environments else ""
        name += f"-{environment}" if environment else ""
        given = self.tasks[number % len(self.tasks)] if self.tasks else None
        if given is not None:
            task = dict(given)
            name += f"-task-{zlib.crc32(json.dumps(task, sort_keys=True, default=str).encode()):08x}"
        return EpisodeStart("", name, seed, task, environment=environment)


async def run_evaluation(
    environment: Any,
    engine: Engine | BaseInferenceEngine,
    chat: Chat | None = None,
    plan: EvaluationPlan | None = None,
    *,
    on_episode: Callable[[Trajectory], None] = lambda trajectory: None,
    starts: Sequence[EpisodeStart] | None = None,
) -> EvaluationResult:
    """Play the episodes of a plan, `plan.concurrency` at a time; a failure costs only its own episode.

    Raises:
        ConfigError: The environment can say before it plays that a task cannot be played.
        EnvironmentFailure: All of the first attempts, at least 8 at 3 episodes, failed in the same way, and so did one
            that began a second later.
        InternalError: turnsmith itself failed, and `failures.internal` is `stop`.

    Args:
        environment: A class, `module:Name`, an instance or an `EnvironmentSpec`.
        engine: The engine, or its synchronous wrapper (`BaseInferenceEngine`).
        chat: The chat template of the engine's tokenizer; a synchronous wrapper has its own.
        plan: Which episodes to play, and how.
        on_episode: Called with each episode as it ends; after a cancellation, the only way to get at them.
        starts: Only these of `plan.starts()`, if several processes share an evaluation.

    Example:
        >>> import asyncio
        >>> from transformers import AutoTokenizer
        >>> from turnsmith import ScriptedEngine, resolve
        >>> from turnsmith.env.examples import GuessNumber
        >>> chat = Chat(AutoTokenizer.from_pretrained(resolve("tiny")))
        >>> plan = EvaluationPlan(episodes=2, limits=Limits(turns=1))
        >>> result = asyncio.run(run_evaluation(GuessNumber, ScriptedEngine(["13"], chat), chat, plan))
        >>> len(result.trajectories)
        2
    """
    with bugs_named():
        return await _run(environment, engine, chat, plan or EvaluationPlan(), on_episode, starts)


async def _run(
    environment: Any,
    engine: Engine | BaseInferenceEngine,
    chat: Chat | None,
    plan: EvaluationPlan,
    on_episode: Callable[[Trajectory], None],
    starts: Sequence[EpisodeStart] | None,
) -> EvaluationResult:
    async_engine, chat = engine_and_chat(engine, chat)
    spec, began = plan.rollout(EnvironmentSpec.of(environment)), time.perf_counter()
    is_whole = starts is None  # else the others of its processes may do better
    starts = plan.starts() if starts is None else starts
    if is_whole and plan.tasks:
        tasks = [task for task in plan.tasks[:1000] if task is not None]
        await asyncio.to_thread(spec.environment.check_tasks, tasks)  # calls rewards, which may block

    failing = SameFailure()

    async def play(place: int) -> Trajectory:
        trajectory = (await play_episode(starts[place], spec, async_engine, chat, failing)).trajectory
        on_episode(trajectory)
        check_not_stopped(trajectory)
        if failing.sentence and is_whole:
            raise EnvironmentFailure(
                f"{failing.sentence.rstrip('.')}. The evaluation was stopped: fix this first, with one episode at a "
                "time (`turnsmith play`)."
            )
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
    """`run_evaluation` for synchronous code. Ctrl-C cancels the running episodes and is raised.

    Example:
        >>> from transformers import AutoTokenizer
        >>> from turnsmith import Chat, ScriptedEngine
        >>> from turnsmith.env.examples import GuessNumber
        >>> from turnsmith.inference.models import resolve
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
        return engine.run(work)  # on the event loop of its other calls, so that all requests are batched together
    loop = LoopThread("turnsmith-evaluation")
    try:
        return loop.run(work)
    finally:
        loop.close()


def engine_and_chat(engine: Engine | BaseInferenceEngine, chat: Chat | None) -> tuple[Engine, Chat]:
    """The asynchronous engine that episodes use, and its chat template; raises a `ConfigError` if that is missing."""
    chat = chat or getattr(engine, "chat", None)
    if not isinstance(chat, Chat):
        raise ConfigError("The engine has no chat template of its own: pass chat=Chat(tokenizer).")
    return engine.engine if isinstance(engine, BaseInferenceEngine) else engine, chat
