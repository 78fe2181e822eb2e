"""What `auto` means on this machine: device, engine, dtype, attention. Does not import torch, which is slow."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from turnsmith.importing import installed_version

PACKED_SDPA = "packed_sdpa"
"""Our own attention for a trainer that concatenates episodes, by the name that transformers knows it by."""


ALONE_ON_GPU = 0.85
"""The share of a GPU's memory for an engine that shares it with no trainer."""


def auto_device() -> str:
    """`cuda` if this process can see an NVIDIA GPU, else `cpu`.

    Looks for the driver's device files; a container may have only one of them. WSL2 has the same file for GPUs of all
    makers, so NVIDIA's library must be installed too. An empty `CUDA_VISIBLE_DEVICES` hides all GPUs.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1"):
        return "cpu"
    has_gpu = any(Path("/dev").glob("nvidia[0-9]*")) or (Path("/dev/dxg").exists() and _has_driver_library())
    return "cuda" if has_gpu else "cpu"


def _has_driver_library() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


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


def auto_attention(device: str, dtype: str) -> str:
    """Which attention the trainer computes: flash attention on a GPU where it is installed, else PyTorch's own.

    Example:
        >>> auto_attention("cpu", "float32"), auto_attention("cuda", "float32")
        ('sdpa', 'packed_sdpa')
    """
    if device == "cpu":  # there, a prompt that several episodes share is computed once instead
        return "sdpa"
    # Flash attention computes in half precision only.
    return "flash_attention_2" if dtype != "float32" and has_flash_attention() else PACKED_SDPA


def has_flash_attention() -> bool:
    """Whether flash-attn is installed. Looks for its distribution: other packages have the module too."""
    return installed_version("flash-attn") is not None
