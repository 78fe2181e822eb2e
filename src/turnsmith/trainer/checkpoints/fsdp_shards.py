"""Reads what verl's FSDP2 ranks wrote to a checkpoint: their shards, and any block of a tensor put together from them.

Reads with torch's `weights_only` loader, which runs no code in the file, unlike the one that verl resumes with. Files
are mapped into memory, so that only the bytes of a block that is asked for are read.
"""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turnsmith.errors import RecordError


def saved_ranks(part: Path) -> int:
    """Number of ranks that wrote `actor/` or `critic/` of a checkpoint."""
    return int(json.loads((part / "fsdp_config.json").read_text(encoding="utf-8"))["world_size"])


def shard_path(part: Path, ranks: int, rank: int, kind: str = "model") -> Path:
    """The file with the shard of one rank; `kind`: `model`, `optim` or `extra_state`."""
    return part / f"{kind}_world_size_{ranks}_rank_{rank}.pt"


def read_shard(path: Path) -> Any:
    """What one rank saved, with sharded tensors as DTensors on the mesh of the run that saved them."""
    import torch

    importlib.import_module("torch.distributed.tensor")  # without it, torch refuses DTensors
    # torch warns of a device mesh that is read without its process group, which is all that we need.
    quiet = logging.getLogger("torch.distributed.device_mesh")
    level, _ = quiet.level, quiet.setLevel(logging.ERROR)
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    finally:
        quiet.setLevel(level)


def read_shards(part: Path, kind: str = "model") -> list[Any]:
    """What every rank saved."""
    ranks = saved_ranks(part)
    return [read_shard(shard_path(part, ranks, rank, kind)) for rank in range(ranks)]


def joined(name: str, parts: Sequence[Any], shape: Sequence[int] = (), offset: Sequence[int] = ()) -> Any:
    """A tensor, or a block of it, in memory of its own.

    Args:
        name: For errors.
        parts: What each rank saved of the tensor.
        shape: Shape of the block; empty: the whole tensor.
        offset: Where the block begins in the tensor.
    """
    import torch

    first = parts[0]
    shape, offset = shape or tuple(first.shape), offset or [0] * first.ndim
    held, dim = _in_order(name, parts)
    if first.ndim == 0:
        return held[0].clone()
    overlaps: list[Any] = []
    begin = 0
    for local in held:
        start, stop = max(begin, offset[dim]), min(begin + local.shape[dim], offset[dim] + shape[dim])
        if start < stop:
            overlaps.append(local.narrow(dim, start - begin, stop - start))
        begin += local.shape[dim]
    if begin != first.shape[dim]:
        raise RecordError(f"{name} has the size {begin} instead of {first.shape[dim]} along dimension {dim}.")
    for other in set(range(first.ndim)) - {dim}:
        overlaps = [one.narrow(other, offset[other], shape[other]) for one in overlaps]
    return torch.cat(overlaps, dim=dim) if overlaps else torch.empty(shape, dtype=first.dtype)


def _in_order(name: str, parts: Sequence[Any]) -> tuple[list[Any], int]:
    """The ranks' own tensors in the order in which they make up the whole, and the dimension along which they do."""
    from torch.distributed.tensor import DTensor, Shard

    first = parts[0]
    if not isinstance(first, DTensor):  # Every rank has what FSDP2 does not shard.
        return [first], 0
    cut = [(axis, placed.dim) for axis, placed in enumerate(first.placements) if isinstance(placed, Shard)]
    if len(cut) > 1 or any(placed.is_partial() for placed in first.placements):
        raise RecordError(f"{name} is sharded as {first.placements}, which turnsmith cannot merge.")
    if not cut:
        return [first.to_local()], 0
    axis, dim = cut[0]
    mesh = first.device_mesh.mesh
    # Along the other axes of the mesh the ranks are replicas.
    along = mesh[tuple(slice(None) if other == axis else 0 for other in range(mesh.ndim))]
    return [parts[rank].to_local() for rank in along.tolist()], dim
