"""The forecast of a run on this machine's CPU: the time of a step, and the memory of every kind of process."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from turnsmith.check.plan.calibrate import Calibration, calibrate
from turnsmith.check.plan.forecast import StepForecast, forecast_step
from turnsmith.check.plan.reference import Reference, measured_work
from turnsmith.check.plan.workload import EpisodeSample
from turnsmith.config import ConfigStore
from turnsmith.env.isolation.settings import Isolation
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.inference.models import resolve
from turnsmith.inference.models.shape import ModelShape
from turnsmith.inference.sync.base import BaseInferenceEngine
from turnsmith.rollout.evaluation.evaluate import EvaluationPlan, evaluate
from turnsmith.rollout.failure_policy import FailurePolicy
from turnsmith.rollout.players import Players
from turnsmith.rollout.spec import Limits
from turnsmith.tools.parsing.formats import parser_for
from turnsmith.trainer.advantages import get_estimator
from turnsmith.trainer.config.layout import episode_workers, rollout_layout, trainer_ranks, training_sampling

_FLOAT32 = 4
_TRAINED = 4
"""Copies of the weights in a trainer rank: weights, gradients and two moments of Adam."""


def environment_workers(config: ConfigStore, environment: EnvironmentSpec | None) -> int:
    """Number of worker processes for environments; None stands for an environment of the user's own.

    Example:
        >>> config = ConfigStore()
        >>> config.environment.isolation_workers, config.ray.num_actors = 4, 2
        >>> environment_workers(config, None)
        8
        >>> environment_workers(config, EnvironmentSpec.of("turnsmith.env.examples:GuessNumber"))
        0
    """
    if environment is None:
        mode = config.environment.isolation
        places = {Isolation.of(config.environment, "process" if mode == "auto" else mode)}
    else:
        places = {Isolation.of(spec.config, spec.isolation) for spec in environment.isolated().each()}
    # Each process that plays episodes starts workers of its own, and environments with the same settings share them.
    return max(1, episode_workers(config)) * sum(one.workers for one in places if one.mode == "process")


def cpu_memory(
    config: ConfigStore, shape: ModelShape, base: dict[str, float], measured: Calibration, workers: int
) -> dict[str, float]:
    """Bytes of each kind of process of a run on a CPU, and of `all`.

    Args:
        config: The settings.
        shape: The model's.
        base: Bytes of each kind with a model that has almost no weights and one environment worker
            (`Reference.memory`).
        measured: What this machine takes with the model.
        workers: Worker processes of environments.
    """
    ranks, servers = trainer_ranks(config), prod(rollout_layout(config))
    weights, training = _FLOAT32 * shape.parameters, config.training
    state = _TRAINED * weights
    kept = state if config.model.lora_rank == 0 else weights
    critic = state * get_estimator(training.adv_estimator).needs_critic
    # With LoRA, the reference model is the actor without its adapter.
    reference = weights * (training.use_kl_loss or training.use_kl_in_reward) * (config.model.lora_rank == 0)
    rank = measured.training - state + (kept + critic + reference) / ranks
    found = {
        "trainer rank": ranks * (base["trainer rank"] + rank),
        "rollout server": servers * (base["rollout server"] + measured.serving),
        "task runner": base["task runner"],
        "data queue": base["data queue"],
        "other": base["other"],
        "environment workers": workers * base["environment workers"],
    }
    if players := episode_workers(config):
        found["episode worker"] = players * base["task runner"]
    if training.schedule == "separate_async":
        found["weight receiver"] = servers * base["task runner"]  # it imports the same modules and keeps nothing
    # The kinds do not all peak at the same time, so the measured total is better than a sum.
    return found | {"all": base["all"] + sum(size - base.get(kind, 0.0) for kind, size in found.items())}


_EPISODES = 32
_SLOW = 50_000_000
"""With more parameters than this, fewer episodes are played."""


@dataclass(frozen=True)
class CpuForecast:
    """What is expected of a run."""

    step: StepForecast
    cpu_seconds: float
    """CPU seconds of a step, of all processes together."""
    memory: dict[str, float]
    """Bytes of each kind of process, and of `all`."""


def shape_of(config: ConfigStore) -> ModelShape:
    """The sizes of the run's model."""
    model = resolve(config.model.model_name, config.model.local_path)
    return ModelShape.of_model(model, trust_remote_code=config.model.trust_remote_code)


def played_sample(
    config: ConfigStore, engine: BaseInferenceEngine, environment: EnvironmentSpec, tasks: Any = None
) -> EpisodeSample:
    """Play some episodes of the run's model in its environment. The caller opens the engine."""
    slow = shape_of(config).parameters > _SLOW
    plan = EvaluationPlan(
        episodes=_EPISODES // 4 if slow else _EPISODES,
        tasks=tasks,
        limits=Limits.of(config.inference),
        sampling=training_sampling(config),
        parser=parser_for(config.inference.tool_format, engine.tokenizer),
        players=Players.of(config.players).check(),
        failures=FailurePolicy.of(config.failures),
    )
    played = evaluate(environment.isolated(), engine, plan=plan).trajectories
    return EpisodeSample.of_episodes(played, f"{len(played)} episodes that were played for this forecast")


def forecast_on_cpu(
    config: ConfigStore, sample: EpisodeSample, known: Reference, environment: EnvironmentSpec | None
) -> CpuForecast:
    """Measure this machine with the run's model for some seconds, and forecast the run.

    Args:
        config: The settings.
        sample: What episodes are like.
        known: What a run takes on this machine besides its model.
        environment: The environment of the run; None stands for one of the user's own.
    """
    model = resolve(config.model.model_name, config.model.local_path)
    measured, shape = calibrate(measured_work(config, sample, model)), shape_of(config)
    step = forecast_step(config, sample, measured.wall, known.wall)
    work = forecast_step(config, sample.without_waiting(), measured.cpu, known.cpu, "sync")
    memory = cpu_memory(config, shape, known.memory, measured, environment_workers(config, environment))
    return CpuForecast(step, work.seconds, memory)
