"""What `auto` stands for on this machine: device, engine and dtype. Does not ask torch, whose import takes seconds."""

from __future__ import annotations

import os
from pathlib import Path


def auto_device() -> str:
    """`cuda` if this process can see an NVIDIA GPU, else `cpu`.

    Looks for the driver's device files, of which a container may have any one, and for that of WSL2. An empty
    `CUDA_VISIBLE_DEVICES` hides them.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1"):
        return "cpu"
    has_gpu = any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()
    return "cuda" if has_gpu else "cpu"


def auto_backend(device: str) -> str:
    """The engine for a device.

    Example:
        >>> auto_backend("cpu"), auto_backend("cuda")
        ('transformers', 'vllm')
    """
    return "transformers" if device == "cpu" else "vllm"


def auto_dtype(device: str) -> str:
    """The dtype for a device.

    Example:
        >>> auto_dtype("cpu"), auto_dtype("cuda")
        ('float32', 'bfloat16')
    """
    return "float32" if device == "cpu" else "bfloat16"
