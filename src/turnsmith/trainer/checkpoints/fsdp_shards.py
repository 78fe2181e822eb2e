"""Merges the weight shards that verl's FSDP2 ranks wrote to a checkpoint.

Reads them with torch's `weights_only` loader, which runs no code in the file, unlike the one that verl resumes with.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from turnsmith.errors import RecordError


def saved_ranks(part: Path) -> int:
    """Number of ranks that wrote `actor/` or `critic/` of a checkpoint."""
    return int(json.loads((part / "fsdp_config.json").read_text(encoding="utf-8"))["world_size"])


def shard_path(part: Path, ranks: int, rank: int) -> Path:
    """The file with the shard of one rank."""
    return part / f"model_world_size_{ranks}_rank_{rank}.pt"


def read_shard(path: Path) -> dict[str, Any]:
    """The weights that one rank wrote, by name; read from the file when they are used."""
    import torch
    import torch.distributed.tensor  # without it, torch refuses to read a DTensor

    # torch warns of a device mesh that is read without its process group, which is all that we need.
    quiet = logging.getLogger("torch.distributed.device_mesh")
    level, _ = quiet.level, quiet.setLevel(logging.ERROR)
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    finally:
        quiet.setLevel(level)


def merge_shards(part: Path) -> dict[str, Any]:
    """All weights, unsharded, in the dtype they were trained in, under their names in training."""
    from torch.distributed.tensor import DTensor

    ranks = saved_ranks(part)
    shards = [read_shard(shard_path(part, ranks, rank)) for rank in range(ranks)]
    # Every rank has what FSDP2 does not shard.
    return {
        name: _whole(name, [shard[name] for shard in shards]) if isinstance(first, DTensor) else first
        for name, first in shards[0].items()
    }


def _whole(name: str, parts: list[Any]) -> Any:
    import torch
    from torch.distributed.tensor import Shard

    mesh, placements = parts[0].device_mesh.mesh, parts[0].placements
    cut = [(axis, placed.dim) for axis, placed in enumerate(placements) if isinstance(placed, Shard)]
    if len(cut) > 1 or any(placed.is_partial() for placed in placements):
        raise RecordError(f"{name} is sharded as {placements}, which turnsmith cannot merge.")
    if not cut:
        return parts[0].to_local()
    axis, dim = cut[0]
    # Along the other axes of the mesh the ranks are replicas.
    along = mesh[tuple(slice(None) if other == axis else 0 for other in range(mesh.ndim))]
    whole = torch.cat([parts[rank].to_local() for rank in along.tolist()], dim=dim)
    if whole.shape != parts[0].shape:
        raise RecordError(f"{name} has the shape {tuple(whole.shape)} instead of {tuple(parts[0].shape)}.")
    return whole
