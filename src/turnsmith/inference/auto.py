"""What `auto` means on this machine: device, engine, dtype, attention. Does not import torch, which is slow."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from turnsmith.importing import installed_version


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
        ('sdpa', 'sdpa')
    """
    # Flash attention computes in half precision only.
    can_use_flash = device != "cpu" and dtype != "float32" and has_flash_attention()
    return "flash_attention_2" if can_use_flash else "sdpa"


def has_flash_attention() -> bool:
    """Whether flash-attn is installed. Looks for its distribution: other packages have the module too."""
    return installed_version("flash-attn") is not None
