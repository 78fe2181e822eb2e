"""The seconds, the memory and the layouts of a run on GPUs, from data sheets. No run has verified any of it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

from turnsmith.check.plan.calibrate import Seconds
from turnsmith.check.plan.forecast import Overhead, StepForecast, forecast_step, row_shape
from turnsmith.check.plan.workload import EpisodeSample
from turnsmith.config import ConfigStore, Schedule
from turnsmith.config_sources import apply_overrides
from turnsmith.errors import ConfigError
from turnsmith.inference.models.shape import ModelShape
from turnsmith.records.yaml_text import parse_yaml
from turnsmith.trainer.advantages import get_estimator
from turnsmith.trainer.config.layout import (
    RayDemand,
    check_layout,
    gpu_share,
    half_micro_batch,
    micro_batch_size,
    micro_batch_tokens,
    rollout_layout,
    trainer_ranks,
)
from turnsmith.trainer.config.log_probs import plain_because
from turnsmith.trainer.config.peak_memory import MARGIN, PeakMemory, executed_peak

_TRAINING, _PREFILL, _READING, _LINK = 0.4, 0.5, 0.6, 0.5
"""Assumed shares of the data sheet's flops, memory bandwidth and link that are reached."""
_BF16, _FROZEN, _STATE = 2, 4, 16
"""Bytes of a parameter in the engine, under an adapter in the trainer, and with gradients and two moments."""
_RECOMPUTED = 4
"""Cost of a forward and a backward pass with gradient checkpointing, in forward passes."""

_CHUNK, _COPIES = 512, 7
"""Tokens whose logits fused log-probs hold at once, and the number of float32 copies, counted on the meta device."""


@dataclass(frozen=True)
class Hardware:
    """One kind of GPU, as in hardware.yaml."""

    name: str
    memory_gib: float
    tflops: float
    bandwidth_gb: float
    link_gb: float

    @classmethod
    def named(cls, name: str, file: str | Path | None = None) -> Hardware:
        """Look a GPU up in the user's file, then in the shipped table.

        Example:
            >>> Hardware.named("H100").memory_gib
            80
            >>> Hardware.named("H1000")
            Traceback (most recent call last):
            turnsmith.errors.ConfigError: There is no hardware 'H1000': choose from A100-40, A100-80, B200, H100, \
H200, L40S, RTX-4090 and cpu, or describe it in a file (--hardware-file).
        """
        text = (files("turnsmith.check.plan") / "hardware.yaml").read_text(encoding="utf-8")
        rows: dict[str, Any] = parse_yaml(text)
        if file is not None:
            rows |= parse_yaml(Path(file).expanduser().read_text(encoding="utf-8"))
        if name not in rows:
            known = ", ".join(sorted(rows))
            raise ConfigError(
                f"There is no hardware {name!r}: choose from {known} and cpu, or describe it in a file "
                "(--hardware-file)."
            )
        try:
            return cls(name, **rows[name])
        except TypeError as error:
            raise ConfigError(f"The hardware {name!r} is not described as in hardware.yaml: {error}.") from None


def gpu_seconds(hardware: Hardware, config: ConfigStore, sample: EpisodeSample, shape: ModelShape) -> Seconds:
    """How long the parts of a step take."""
    parallel = config.model.tensor_parallel_size
    flops, link = 1e12 * hardware.tflops, 1e9 * hardware.link_gb * _LINK
    reading = 1e9 * hardware.bandwidth_gb * _READING * parallel
    weights, context = _BF16 * shape.parameters, sample.prompt + sample.response / 2
    new = (sample.prompt + sample.response - sample.sampled) / sample.turns  # the prefix cache has the rest
    rows, length = row_shape(config, sample, shape, shared=False)
    passed = shape.flops(rows * length, length) / (flops * _TRAINING * config.model.sequence_parallel_size)
    ranks = trainer_ranks(config)
    gather = weights / link if ranks > 1 else 0.0
    return Seconds(
        token=weights / reading,
        sequence=2 * shape.active / (flops * _PREFILL * parallel) + _BF16 * shape.cache_values * context / reading,
        prefill=shape.flops(new, context, 1) / (flops * _PREFILL * parallel),
        resample=0.0,
        forward=max(passed, gather),
        backward=max(_RECOMPUTED * passed, 3 * gather),
        optimizer=3 * _STATE * shape.parameters / ranks / (1e9 * hardware.bandwidth_gb * _READING),
        send=weights / link,
    )


def gpu_memory(
    hardware: Hardware, config: ConfigStore, sample: EpisodeSample, shape: ModelShape, peak: PeakMemory | str = ""
) -> Mapping[str, float]:
    """Bytes on one GPU: of the trainer in its update, of the engine, and whether both fit (`fits`, 1 or 0).

    The trainer's are calculated where they were not executed.
    """
    size, parallel = hardware.memory_gib * 2**30, config.model.tensor_parallel_size
    is_known = isinstance(peak, PeakMemory)
    update, rest, sync = (peak.update, peak.rest, peak.sync) if is_known else _calculated(config, sample, shape)
    engine, weights = gpu_share(config) * size, _BF16 * shape.parameters / parallel
    cache = engine - weights - MARGIN
    one = _BF16 * shape.cache_values * (sample.prompt + sample.longest) / parallel
    needed = update + MARGIN
    if config.training.schedule != "separate_async":
        needed = max(needed, rest + engine, sync + weights + MARGIN)
    fits = cache > one and needed < size
    found = {"trainer rank": update + MARGIN, "rollout server": engine, "cached episodes": cache // one}
    return found | {"needed": needed, "fits": float(fits)}


def _calculated(config: ConfigStore, sample: EpisodeSample, shape: ModelShape) -> tuple[float, float, float]:
    """Bytes of the trainer in its update, between updates and while it sends weights."""
    actor = _STATE if config.model.lora_rank == 0 else _FROZEN
    # verl trains the critic without an adapter.
    critic = _STATE * get_estimator(config.training.adv_estimator).needs_critic
    state = (actor + critic) * shape.parameters / trainer_ranks(config)
    padded = micro_batch_size(config) * (sample.prompt + sample.longest) / config.model.sequence_parallel_size
    tokens = micro_batch_tokens(config) or padded
    layer = _BF16 * (shape.parameters - shape.vocab * shape.hidden) / shape.layers
    kept = tokens * shape.layers * shape.hidden * _BF16  # with gradient checkpointing
    inside = tokens * _BF16 * (8 * shape.hidden + 4 * shape.intermediate) + 2 * layer
    return state + kept + inside + _head(config, shape, tokens), state, state


def _head(config: ConfigStore, shape: ModelShape, tokens: float) -> float:
    """Bytes between the last layer and the loss."""
    if plain_because(config):
        return 3 * 4 * tokens * shape.vocab
    # The gathered head, its gradient, and the gradient of one chunk.
    return _COPIES * 4 * min(tokens, _CHUNK) * shape.vocab + 3 * _BF16 * shape.vocab * shape.hidden


OVERHEAD = Overhead(generate=(0.5, 0.002), old_log_prob=(0.3, 0.02), update_actor=(0.3, 0.05), rest=(0.5, 0.0))
"""Assumed for GPUs."""
_SIZES = (1, 2, 4, 8)
_EXECUTED = 4
"""Layouts that are executed at most, to find one that fits."""


@dataclass(frozen=True)
class GpuLayout:
    """One way to use some GPUs."""

    settings: dict[str, object]
    """The settings that differ between layouts."""
    gpus: int
    step: StepForecast
    memory: dict[str, float]
    peak: PeakMemory | str
    """The trainer's memory by execution, or why it is calculated instead."""

    @property
    def fits(self) -> bool:
        """Whether a GPU has enough memory."""
        return bool(self.memory["fits"])

    def words(self) -> list[str]:
        """The settings as words of a command line."""
        return [f"{name}={'null' if value is None else value}" for name, value in self.settings.items()]


def layouts(hardware: Hardware, config: ConfigStore, sample: EpisodeSample, shape: ModelShape) -> list[GpuLayout]:
    """All layouts on the nodes of the settings, each with micro-batches that fit if any do.

    Layouts that fit come first, the fastest of them at the top; that is executed where it can be.
    """

    def place(one: GpuLayout) -> tuple[bool, float, int]:
        return not one.fits, one.step.seconds, one.gpus

    fitted = (_with_micro_batches(hardware, one, sample, shape) for one in _candidates(config, shape))
    made = [(forecast_layout(hardware, one, sample, shape, config), one) for one in fitted]
    made.sort(key=lambda pair: place(pair[0]))
    found: list[GpuLayout] = []
    for layout, one in made[:_EXECUTED]:
        found.append(executed_layout(hardware, one, sample, shape, config) if layout.fits else layout)
        if found[-1].fits:
            return sorted([*found, *(layout for layout, _ in made[len(found) :])], key=place)
    return found


def forecast_layout(
    hardware: Hardware, config: ConfigStore, sample: EpisodeSample, shape: ModelShape, asked: ConfigStore | None = None
) -> GpuLayout:
    """The layout of the settings, and what to change in `asked` to get it."""
    asked = asked or config
    gpus, ray, own = RayDemand.of(config).total_gpus, config.ray, asked.ray
    step = forecast_step(config, sample, gpu_seconds(hardware, config, sample, shape), OVERHEAD)
    settings: dict[str, object] = {"training.schedule": config.training.schedule}
    settings |= {"ray.num_nodes": ray.num_nodes, "ray.gpus_per_node": ray.gpus_per_node}
    if ray.rollout_nodes or own.rollout_nodes:
        settings["ray.rollout_nodes"] = ray.rollout_nodes
    if config.training.schedule == "separate_async" or own.rollout_gpus_per_node:
        settings["ray.rollout_gpus_per_node"] = ray.rollout_gpus_per_node
    settings["model.tensor_parallel_size"] = config.model.tensor_parallel_size
    for name in ("micro_batch_size", "micro_batch_tokens"):
        if (size := getattr(config.training, name)) != getattr(asked.training, name):
            settings[f"training.{name}"] = size
    memory = dict(gpu_memory(hardware, config, sample, shape))
    return GpuLayout(settings, gpus, step, memory, "only layouts that may be chosen are executed")


def executed_layout(
    hardware: Hardware, config: ConfigStore, sample: EpisodeSample, shape: ModelShape, asked: ConfigStore | None = None
) -> GpuLayout:
    """The same with the memory of its trainer by execution, if it can be executed."""
    peak = executed_peak(config, episode=round(sample.prompt + sample.longest))
    memory = dict(gpu_memory(hardware, config, sample, shape, peak))
    return replace(forecast_layout(hardware, config, sample, shape, asked), memory=memory, peak=peak)


def _with_micro_batches(
    hardware: Hardware, config: ConfigStore, sample: EpisodeSample, shape: ModelShape
) -> ConfigStore:
    """The settings with micro-batches halved until they fit into the memory, or unchanged if none fit."""
    one = copy.deepcopy(config)
    while not gpu_memory(hardware, one, sample, shape)["fits"]:
        if (half := half_micro_batch(one)) is None:
            return config
        one = apply_overrides(one, [half])
    return one


def _candidates(config: ConfigStore, shape: ModelShape) -> Iterator[ConfigStore]:
    """Settings of different layouts that `check_layout` accepts: the given one, and others on the same nodes."""
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
    """Other numbers of GPUs on a node, splits for `separate_async`, and sizes of tensor parallelism."""
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
