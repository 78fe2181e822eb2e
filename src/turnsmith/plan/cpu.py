"""The forecast of a run on this machine's CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from turnsmith.config import ConfigStore
from turnsmith.models import resolve
from turnsmith.plan.calibrate import calibrate
from turnsmith.plan.forecast import StepForecast, forecast_step
from turnsmith.plan.memory import cpu_memory
from turnsmith.plan.model_shape import ModelShape
from turnsmith.plan.reference import Reference, measured_work
from turnsmith.plan.workload import EpisodeSample

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


def played_sample(config: ConfigStore, environment: Any, tasks: Any = None) -> EpisodeSample:
    """Some episodes of the run's model in its environment, played now."""
    from turnsmith.env.spec import EnvironmentSpec
    from turnsmith.inference.engine import Sampling
    from turnsmith.inference.sync.create import create_inference_engine, engine_settings
    from turnsmith.rollout.evaluation.evaluate import EvaluationPlan, evaluate
    from turnsmith.rollout.limits import Limits
    from turnsmith.tools.parsing.formats import parser_for
    from turnsmith.trainer.config.auto import resolve_backend

    backend, inference = resolve_backend(config), config.inference
    model = resolve(config.model.model_name, config.model.local_path)
    spec = EnvironmentSpec.of(environment, config.environment).isolated()
    slow = ModelShape.of_model(model).parameters > _SLOW
    with create_inference_engine(model, backend, engine_settings(config, backend)) as engine:
        plan = EvaluationPlan(
            episodes=_EPISODES // 4 if slow else _EPISODES,
            tasks=tasks,
            limits=Limits.of(inference),
            sampling=Sampling(inference.max_tokens, inference.temperature, inference.top_p, inference.top_k),
            parser=parser_for(inference.tool_format, engine.tokenizer),
        )
        played = evaluate(spec, engine, plan=plan).trajectories
    return EpisodeSample.of_episodes(played, f"{len(played)} episodes that were played for this forecast")


def forecast_on_cpu(config: ConfigStore, sample: EpisodeSample, known: Reference) -> CpuForecast:
    """Measure this machine with the run's model for some seconds, and forecast the run."""
    model = resolve(config.model.model_name, config.model.local_path)
    measured, shape = calibrate(measured_work(config, sample, model)), ModelShape.of_model(model)
    step = forecast_step(config, sample, measured.wall, known.wall)
    work = forecast_step(config, sample.without_waiting(), measured.cpu, known.cpu, "sync")
    return CpuForecast(step, work.seconds, cpu_memory(config, shape, known.memory, measured))
