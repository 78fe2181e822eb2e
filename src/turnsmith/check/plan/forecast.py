"""The seconds of a step by phase, for each schedule, from the seconds of its parts."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from turnsmith.check.plan.calibrate import Seconds
from turnsmith.check.plan.schedule_model import StepCosts, Turn, Workload, simulate
from turnsmith.check.plan.workload import EpisodeSample, EpisodeTurn
from turnsmith.config import ConfigStore
from turnsmith.inference.models.shape import ModelShape
from turnsmith.trainer.advantages import get_estimator
from turnsmith.trainer.config.layout import batch_shares, micro_batch_size, rollout_layout, trainer_ranks

_STEPS, _WARM_UP = 6, 3


@dataclass(frozen=True)
class Overhead:
    """Seconds that are not the model's work: a fixed part, and a part for each turn or micro-batch of a step."""

    generate: tuple[float, float] = (0.0, 0.0)
    old_log_prob: tuple[float, float] = (0.0, 0.0)
    update_actor: tuple[float, float] = (0.0, 0.0)
    sync_weights: tuple[float, float] = (0.0, 0.0)
    rest: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class StepForecast:
    """One step."""

    schedule: str
    seconds: float
    phases: dict[str, float]
    idle: float
    """Share of the time of all devices in which they wait."""


def micro_batches(config: ConfigStore) -> int:
    """Forward passes of a rank in one pass over a batch."""
    return config.training.batch_size // batch_shares(config) // micro_batch_size(config)


def row_shape(config: ConfigStore, sample: EpisodeSample, shape: ModelShape, *, shared: bool) -> tuple[int, int]:
    """Rows of a micro-batch and their length.

    On a CPU, the episodes of a group share a row if that is less work, as in `trainer/verl/cpu/shared_prompts.py`.
    """
    episodes, prompt, response = micro_batch_size(config), sample.prompt, sample.response
    together = min(config.training.group_size, episodes)
    alone, packed = prompt + response, prompt + together * response
    if shared and packed * (6 * shape.hidden + packed) < together * alone * (6 * shape.hidden + alone):
        return max(1, episodes // together), round(packed)
    return episodes, round(prompt + (sample.longest + response) / 2)  # padded to the longest of a few


def model_phases(config: ConfigStore, seconds: Seconds, overhead: Overhead) -> dict[str, float]:
    """Seconds of every phase of a step but generation."""
    training, passes = config.training, micro_batches(config)
    trained = passes * training.updates_per_batch
    updates = training.updates_per_batch * (training.batch_size // (training.mini_batch_size or training.batch_size))
    forwards = 1 + (training.use_kl_loss or training.use_kl_in_reward)
    work = {
        "old_log_prob": passes * seconds.forward * forwards,
        "update_actor": trained * seconds.backward + updates * seconds.optimizer,
        "sync_weights": seconds.send,
        "rest": 0.0,
    }
    if get_estimator(training.adv_estimator).needs_critic:  # a critic of the same size
        work["rest"] += passes * seconds.forward + work["update_actor"]
    counts = {"old_log_prob": passes, "update_actor": trained, "sync_weights": 0, "rest": passes}
    return {name: value + _plus(getattr(overhead, name), counts[name]) for name, value in work.items()}


def forecast_step(
    config: ConfigStore, sample: EpisodeSample, seconds: Seconds, overhead: Overhead, schedule: str | None = None
) -> StepForecast:
    """One step with a schedule, by default the one of the settings."""
    training, phases = config.training, model_phases(config, seconds, overhead)
    schedule = schedule or training.schedule
    servers = max(1, prod(rollout_layout(config)) // config.model.tensor_parallel_size)
    contexts = [sample.prompt + before for one in sample.episodes for before in _before(one)]
    mean_context = statistics.fmean(contexts)
    mean_sampled = sample.sampled / sample.turns

    def turns_of(episode: list[EpisodeTurn]) -> list[Turn]:
        found: list[Turn] = []
        for turn, before in zip(episode, _before(episode), strict=True):
            alone = seconds.prefill * (sample.prompt + before) / mean_context
            alone += seconds.resample * turn.sampled / mean_sampled + overhead.generate[1]
            found.append(Turn(turn.sampled, turn.environment, alone / servers))
        return found

    episodes = [turns_of(one) for one in sample.episodes]
    costs = StepCosts(
        hand_over=overhead.generate[0],
        update=phases["old_log_prob"] + phases["update_actor"],
        sync=phases["sync_weights"],
        rest=phases["rest"],
    )

    def speed(turns: int) -> float:
        """Tokens a second of each turn, while this number of turns is generated."""
        return 1.0 / (seconds.token + seconds.sequence * max(1.0, turns / servers))

    found = simulate(
        schedule,
        Workload(
            lambda chance: [chance.choice(episodes) for _ in range(training.group_size)], lambda chance, name: costs
        ),
        groups=training.batch_size // training.group_size,
        steps=_STEPS + _WARM_UP,
        slots=config.inference.max_concurrency * servers,
        max_staleness=training.max_staleness,
        ahead=training.max_staleness if schedule == "separate_async" else 1,
        warm_up=_WARM_UP,
        speed=speed,
    )
    step = statistics.fmean(found.step_seconds)
    waited = max(0.0, step - sum(phases.values()))
    busy = _least_generation(config, episodes, speed, servers)
    return StepForecast(schedule, step, {"generate": waited, **phases}, _idle(config, schedule, step, busy, phases))


def _least_generation(
    config: ConfigStore, episodes: list[list[Turn]], speed: Callable[[int], float], servers: int
) -> float:
    """Seconds that the engine would need for a batch if all its slots were used all the time."""
    full = min(config.training.batch_size, config.inference.max_concurrency * servers)
    tokens = statistics.fmean(sum(turn.generate for turn in one) for one in episodes)
    alone = statistics.fmean(sum(turn.alone for turn in one) for one in episodes)
    return config.training.batch_size * (tokens / (full * speed(full)) + alone)


def _idle(config: ConfigStore, schedule: str, step: float, generation: float, phases: dict[str, float]) -> float:
    trained = phases["old_log_prob"] + phases["update_actor"]
    if schedule != "separate_async":
        return max(0.0, 1 - (generation + trained) / step)
    split = replace(config, training=replace(config.training, schedule=schedule))
    trainers, generators = trainer_ranks(split), prod(rollout_layout(split))
    return max(0.0, 1 - (generation * generators + trained * trainers) / (step * (trainers + generators)))


def _before(episode: list[EpisodeTurn]) -> list[int]:
    """Tokens between the opening prompt and each turn."""
    found = [0]
    for turn in episode[:-1]:
        found.append(found[-1] + turn.sampled + turn.observed)
    return found


def _plus(parts: tuple[float, float], count: float) -> float:
    return parts[0] + parts[1] * count
