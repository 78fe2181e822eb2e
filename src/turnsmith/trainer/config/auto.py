"""What `auto` means in the settings of a run: device, engine, dtype and attention."""

from __future__ import annotations

from turnsmith.config import ConfigStore
from turnsmith.inference.auto import auto_attention, auto_backend, auto_device, auto_dtype


def resolve_device(config: ConfigStore) -> str:
    """`cpu` or `cuda`."""
    if config.model.device != "auto":
        return config.model.device
    # A cluster that is joined by its address is taken to have GPUs, whatever this machine has.
    return "cuda" if config.ray.address else auto_device()


def resolve_backend(config: ConfigStore) -> str:
    """The name of the engine."""
    if config.inference.backend != "auto":
        return config.inference.backend
    return auto_backend(resolve_device(config))


def resolve_dtype(config: ConfigStore) -> str:
    """The dtype in which trainer and engine compute."""
    return auto_dtype(resolve_device(config)) if config.model.dtype == "auto" else config.model.dtype


def resolve_attention(config: ConfigStore) -> str:
    """How the trainer computes attention."""
    chosen = config.model.attn_implementation
    return auto_attention(resolve_device(config), resolve_dtype(config)) if chosen == "auto" else chosen
