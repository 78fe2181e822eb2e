"""The forecast of a run on this machine's CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from turnsmith.config import ConfigStore
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.inference.sync.base import BaseInferenceEngine
from turnsmith.models import resolve
from turnsmith.models.shape import ModelShape
from turnsmith.plan.calibrate import calibrate
from turnsmith.plan.forecast import StepForecast, forecast_step
from turnsmith.plan.memory import cpu_memory, environment_workers
from turnsmith.plan.reference import Reference, measured_work
from turnsmith.plan.workload import EpisodeSample
from turnsmith.rollout.evaluation.evaluate import EvaluationPlan, evaluate
from turnsmith.rollout.failure_policy import FailurePolicy
from turnsmith.rollout.limits import Limits
from turnsmith.rollout.players import Players
from turnsmith.tools.parsing.formats import parser_for
from turnsmith.trainer.config.build import training_sampling

_EPISODES = 32
_SLOW = 50_000_000
"""With more parameters than this, only a few episodes are played."""


@dataclass(frozen=True)
class CpuForecast:
    """What is expected of a run."""

    step: StepForecast
    cpu_seconds: float
    """Of a step, of all processes together."""
    memory: dict[str, float]
    """Bytes of each kind of process, and of `all`."""

    @classmethod
    def of(cls, found: dict[str, Any]) -> Self:
        """From `dataclasses.asdict`."""
        return cls(StepForecast(**found["step"]), found["cpu_seconds"], found["memory"])


def shape_of(config: ConfigStore) -> ModelShape:
    """The sizes of the run's model."""
    model = resolve(config.model.model_name, config.model.local_path)
    return ModelShape.of_model(model, trust_remote_code=config.model.trust_remote_code)


def played_sample(
    config: ConfigStore, engine: BaseInferenceEngine, environment: EnvironmentSpec, tasks: Any = None
) -> EpisodeSample:
    """Some episodes of the run's model in its environment, played now; the caller opens the engine."""
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
        known: What a run takes besides its model.
        environment: What is trained in; None: an environment of the user's own.
    """
    model = resolve(config.model.model_name, config.model.local_path)
    measured, shape = calibrate(measured_work(config, sample, model)), shape_of(config)
    step = forecast_step(config, sample, measured.wall, known.wall)
    work = forecast_step(config, sample.without_waiting(), measured.cpu, known.cpu, "sync")
    memory = cpu_memory(config, shape, known.memory, measured, environment_workers(config, environment))
    return CpuForecast(step, work.seconds, memory)
