"""The layouts of a run on up to so many GPUs, from the fastest to the slowest of those that fit."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

from turnsmith.config import ConfigStore, Schedule
from turnsmith.errors import ConfigError
from turnsmith.models.shape import ModelShape
from turnsmith.plan.forecast import Overhead, StepForecast, forecast_step
from turnsmith.plan.gpu import Hardware, gpu_memory, gpu_seconds
from turnsmith.plan.workload import EpisodeSample
from turnsmith.trainer.config.layout import RayDemand, check_layout

OVERHEAD = Overhead(generate=(0.5, 0.002), old_log_prob=(0.3, 0.02), update_actor=(0.3, 0.05), rest=(0.5, 0.0))
"""Assumed for GPUs."""
_SIZES = (1, 2, 4, 8)


@dataclass(frozen=True)
class GpuLayout:
    """One way to use some GPUs."""

    settings: dict[str, object]
    """Those that differ between layouts."""
    gpus: int
    step: StepForecast
    memory: dict[str, float]
    price: float
    """US dollars for 1000 episodes."""

    @property
    def fits(self) -> bool:
        """Whether a GPU has enough memory."""
        return bool(self.memory["fits"])


def layouts(hardware: Hardware, config: ConfigStore, sample: EpisodeSample, shape: ModelShape) -> list[GpuLayout]:
    """All layouts on at most the GPUs that the settings ask for; those that fit first, and of them the fastest."""
    found = [forecast_layout(hardware, one, sample, shape) for one in _candidates(config)]
    return sorted(found, key=lambda one: (not one.fits, one.step.seconds, one.price))


def forecast_layout(hardware: Hardware, config: ConfigStore, sample: EpisodeSample, shape: ModelShape) -> GpuLayout:
    """The layout of the settings."""
    gpus = RayDemand.of(config).total_gpus
    step = forecast_step(config, sample, gpu_seconds(hardware, config, sample, shape), OVERHEAD)
    price = step.seconds / 3600 * gpus * hardware.price / config.training.batch_size * 1000
    apart = config.training.schedule == "separate_async"
    settings: dict[str, object] = {"training.schedule": config.training.schedule}
    settings |= {"ray.num_nodes": config.ray.num_nodes, "ray.gpus_per_node": config.ray.gpus_per_node}
    settings |= {"ray.rollout_gpus_per_node": config.ray.rollout_gpus_per_node} if apart else {}
    settings["model.tensor_parallel_size"] = config.model.tensor_parallel_size
    return GpuLayout(settings, gpus, step, dict(gpu_memory(hardware, config, sample, shape)), price)


def _candidates(config: ConfigStore) -> Iterator[ConfigStore]:
    """Settings that `check_layout` accepts: GPUs of a node, split for `separate_async`, and tensor parallelism."""
    demand = RayDemand.of(config)
    most = max(demand.gpus, demand.rollout_gpus)
    for gpus in sorted({size for size in _SIZES if size <= most} | {most}):
        splits: list[tuple[Schedule, int, int | None]] = [("sync", gpus, None), ("colocate_async", gpus, None)]
        splits.extend(("separate_async", gpus - apart, apart) for apart in range(1, gpus))
        for schedule, trainers, apart in splits:
            for parallel in (size for size in _SIZES if size <= gpus):
                one = copy.deepcopy(config)
                one.training.schedule, one.ray.gpus_per_node = schedule, trainers
                one.ray.rollout_nodes, one.ray.rollout_gpus_per_node = 0, apart
                one.model.tensor_parallel_size = parallel
                try:
                    check_layout(one)
                except ConfigError:
                    continue
                yield one
