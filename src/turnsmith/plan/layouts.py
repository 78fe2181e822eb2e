"""The layouts of a run on up to so many GPUs, from the fastest to the slowest of those that fit."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from turnsmith.config import ConfigStore, Schedule
from turnsmith.errors import ConfigError
from turnsmith.models.shape import ModelShape
from turnsmith.plan.forecast import Overhead, StepForecast, forecast_step
from turnsmith.plan.gpu import Hardware, gpu_memory, gpu_seconds
from turnsmith.plan.workload import EpisodeSample
from turnsmith.trainer.config.layout import RayDemand, check_layout, micro_batch_size, rollout_layout, trainer_ranks

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

    def words(self) -> list[str]:
        """The settings as words of a command line."""
        return [f"{name}={'null' if value is None else value}" for name, value in self.settings.items()]


def layouts(hardware: Hardware, config: ConfigStore, sample: EpisodeSample, shape: ModelShape) -> list[GpuLayout]:
    """All layouts on the nodes that the settings ask for, each with micro-batches that fit if any do; those that fit
    first, and of them the fastest.
    """
    fitted = (_with_micro_batches(hardware, one, sample, shape) for one in _candidates(config, shape))
    found = [forecast_layout(hardware, one, sample, shape, config) for one in fitted]
    return sorted(found, key=lambda one: (not one.fits, one.step.seconds, one.price))


def forecast_layout(
    hardware: Hardware, config: ConfigStore, sample: EpisodeSample, shape: ModelShape, asked: ConfigStore | None = None
) -> GpuLayout:
    """The layout of the settings; with `asked`, it is told what to change in those."""
    asked = asked or config
    gpus, ray, own = RayDemand.of(config).total_gpus, config.ray, asked.ray
    step = forecast_step(config, sample, gpu_seconds(hardware, config, sample, shape), OVERHEAD)
    price = step.seconds / 3600 * gpus * hardware.price / config.training.batch_size * 1000
    settings: dict[str, object] = {"training.schedule": config.training.schedule}
    settings |= {"ray.num_nodes": ray.num_nodes, "ray.gpus_per_node": ray.gpus_per_node}
    if ray.rollout_nodes or own.rollout_nodes:
        settings["ray.rollout_nodes"] = ray.rollout_nodes
    if config.training.schedule == "separate_async" or own.rollout_gpus_per_node:
        settings["ray.rollout_gpus_per_node"] = ray.rollout_gpus_per_node
    settings["model.tensor_parallel_size"] = config.model.tensor_parallel_size
    if config.training.micro_batch_size != asked.training.micro_batch_size:
        settings["training.micro_batch_size"] = config.training.micro_batch_size
    return GpuLayout(settings, gpus, step, dict(gpu_memory(hardware, config, sample, shape)), price)


def _with_micro_batches(
    hardware: Hardware, config: ConfigStore, sample: EpisodeSample, shape: ModelShape
) -> ConfigStore:
    """The settings with the largest micro-batches, halved, that fit into the memory; if none do, as they are."""
    one = copy.deepcopy(config)
    while not gpu_memory(hardware, one, sample, shape)["fits"]:
        if (size := micro_batch_size(one)) == 1:
            return config
        one.training.micro_batch_size = size // 2
    return one


def _candidates(config: ConfigStore, shape: ModelShape) -> Iterator[ConfigStore]:
    """Settings that `check_layout` accepts, each layout once: the settings' own, and others on the same nodes."""
    seen = set[object]()
    for one in (config, *_others(config)):
        layout = trainer_ranks(one), one.ray.num_nodes, one.ray.rollout_nodes, rollout_layout(one)
        if shape.heads % one.model.tensor_parallel_size:
            continue
        try:
            check_layout(one)
        except ConfigError:
            continue
        if (kind := (one.training.schedule, one.model.tensor_parallel_size, layout)) not in seen:
            seen.add(kind)
            yield one


def _others(config: ConfigStore) -> Iterator[ConfigStore]:
    """GPUs of a node, on the nodes that have so many, split for `separate_async`; and tensor parallelism."""
    demand = RayDemand.of(config)
    kinds = [(demand.nodes, demand.gpus), (demand.rollout_nodes, demand.rollout_gpus)]
    most = {gpus for _, gpus in kinds}
    for gpus in sorted({size for size in _SIZES if size <= max(most)} | most - {0}):
        have = [nodes for nodes, has in kinds if nodes and has >= gpus]
        splits: list[tuple[Schedule, int, int | None]] = [("sync", gpus, None), ("colocate_async", gpus, None)]
        splits.extend(("separate_async", gpus - apart, apart) for apart in range(1, gpus))
        for nodes, (schedule, trainers, apart) in product(sorted({have[0], sum(have)}), splits):
            for parallel in (size for size in _SIZES if size <= gpus):
                one = copy.deepcopy(config)
                one.training.schedule, one.ray.num_nodes, one.ray.gpus_per_node = schedule, nodes, trainers
                one.ray.rollout_nodes, one.ray.rollout_gpus_per_node = 0, apart
                one.model.tensor_parallel_size = parallel
                yield one
