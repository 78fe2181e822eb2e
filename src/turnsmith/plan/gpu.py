"""The seconds and the memory of a run on GPUs, from data sheets. Nothing here was verified by a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from turnsmith.config import ConfigStore
from turnsmith.errors import ConfigError
from turnsmith.models.shape import ModelShape
from turnsmith.plan.calibrate import Seconds
from turnsmith.plan.forecast import row_shape
from turnsmith.plan.workload import EpisodeSample
from turnsmith.records.yaml_text import parse_yaml
from turnsmith.trainer.advantages import get_estimator
from turnsmith.trainer.config.layout import micro_batch_size, trainer_ranks
from turnsmith.trainer.config.log_probs import plain_because

_TRAINING, _PREFILL, _READING, _LINK = 0.4, 0.5, 0.6, 0.5
"""Assumed shares of the data sheet's flops, memory bandwidth and link that are reached."""
_BF16, _FROZEN, _STATE = 2, 4, 16
"""Bytes of a parameter in the engine; in the trainer below an adapter; and with gradients and two moments."""
_CONTEXT = 1.5 * 2**30
"""CUDA, NCCL and what PyTorch keeps, on each GPU."""
_RECOMPUTED = 4
"""Forward passes that a forward and a backward pass cost with gradient checkpointing."""

_CHUNK, _COPIES = 512, 7
"""Tokens whose logits fused log-probs hold at once, and how often, in float32: counted on the meta device."""


@dataclass(frozen=True)
class Hardware:
    """One kind of GPU, as in hardware.yaml."""

    name: str
    memory_gib: float
    tflops: float
    bandwidth_gb: float
    link_gb: float
    price: float

    @classmethod
    def named(cls, name: str, file: str | Path | None = None) -> Hardware:
        """From the shipped table and a file of the user's own, which wins.

        Example:
            >>> Hardware.named("H100").memory_gib
            80
            >>> Hardware.named("H1000")
            Traceback (most recent call last):
            turnsmith.errors.ConfigError: There is no hardware 'H1000': choose from A100-40, A100-80, B200, H100, \
H200, L40S, RTX-4090 and cpu, or describe it in a file (--hardware-file).
        """
        text = (files("turnsmith.plan") / "hardware.yaml").read_text(encoding="utf-8")
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
    new = (sample.prompt + sample.response - sample.sampled) / sample.turns  # the rest is in the prefix cache
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
    hardware: Hardware, config: ConfigStore, sample: EpisodeSample, shape: ModelShape
) -> Mapping[str, float]:
    """Bytes on one GPU: of the trainer in its update, of the engine, and whether both fit (`fits`, 1 or 0)."""
    apart = config.training.schedule == "separate_async"
    size, ranks = hardware.memory_gib * 2**30, trainer_ranks(config)
    actor = _STATE if config.model.lora_rank == 0 else _FROZEN
    critic = _STATE * get_estimator(config.training.adv_estimator).needs_critic  # verl gives it no adapter
    state = (actor + critic) * shape.parameters / ranks
    tokens = micro_batch_size(config) * (sample.prompt + sample.longest) / config.model.sequence_parallel_size
    layer = _BF16 * (shape.parameters - shape.vocab * shape.hidden) / shape.layers
    kept = tokens * shape.layers * shape.hidden * _BF16  # with gradient checkpointing
    inside = tokens * _BF16 * (8 * shape.hidden + 4 * shape.intermediate) + 2 * layer
    update = state + kept + inside + _head(config, shape, tokens) + _CONTEXT
    engine = config.inference.gpu_memory_utilization * size
    weights = _BF16 * shape.parameters / config.model.tensor_parallel_size
    cache = engine - weights - _CONTEXT
    one = _BF16 * shape.cache_values * (sample.prompt + sample.longest) / config.model.tensor_parallel_size
    fits = cache > one and update < size and (apart or state + engine < size)
    return {"trainer rank": update, "rollout server": engine, "cached episodes": cache // one, "fits": float(fits)}


def _head(config: ConfigStore, shape: ModelShape, tokens: float) -> float:
    """Bytes between the last layer and the loss."""
    if plain_because(config):
        return 3 * 4 * tokens * shape.vocab
    # The head as it was gathered, its gradient, and that of one chunk.
    return _COPIES * 4 * min(tokens, _CHUNK) * shape.vocab + 3 * _BF16 * shape.vocab * shape.hidden
