"""Names that a setting may have, and what `auto` stands for: the device, the rollout engine, the dtype."""

from __future__ import annotations

from pathlib import Path

from turnsmith.config import ConfigStore
from turnsmith.trainer.verl.rollout_registry import TRANSFORMERS

DTYPES = ("float32", "bfloat16", "float16")
POLICY_LOSSES = {"ppo": "vanilla", "gspo": "gspo", "cispo": "cispo"}
"""Our names of policy losses, and verl's."""
LOSS_AGGREGATIONS = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
"""As in `algo.aggregate_loss`, which is not imported for them: it brings torch."""
ROLLOUT_CORRECTIONS = ("none", "token", "sequence")
SCHEDULES = ("sync", "colocate_async", "separate_async")
"""Trainer modes of verl, by its own names."""


def resolve_device(config: ConfigStore) -> str:
    """`cpu` or `cuda`: what the settings say, or what the machine has."""
    if config.model.device != "auto":
        return config.model.device
    # The driver's device file, because asking torch would cost the user's process a second of import. A cluster that is
    # joined by its address is taken to have GPUs, whatever this machine has.
    return "cuda" if Path("/dev/nvidia0").exists() or config.ray.address else "cpu"


def resolve_backend(config: ConfigStore) -> str:
    """The rollout engine's name: what the settings say, or the one that fits the device."""
    if config.inference.backend != "auto":
        return config.inference.backend
    return TRANSFORMERS if resolve_device(config) == "cpu" else "vllm"


def resolve_dtype(config: ConfigStore) -> str:
    """The dtype in which model and rollout compute."""
    if config.model.dtype != "auto":
        return config.model.dtype
    return "float32" if resolve_device(config) == "cpu" else "bfloat16"
