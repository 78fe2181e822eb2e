"""Changes one weight in a checkpoint, to see whether the change arrives where tokens are sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from turnsmith.errors import RecordError
from turnsmith.records.checkpoint_manifest import write_manifest
from turnsmith.records.signing_key import signing_key
from turnsmith.trainer.checkpoints.fsdp_shards import saved_ranks, shard_path

_FACTOR = 1.5
_ADDED = 0.5


def perturb_checkpoint(checkpoint: Path) -> str:
    """Change one weight of the model in a checkpoint's files, on every rank; return its name.

    Of a LoRA adapter it is the last `lora_B`, to which a number is added, because it starts at 0; else the last
    normalization before the output, which is scaled, so that all log-probs move.
    """
    import torch

    part = checkpoint / "actor"
    ranks = saved_ranks(part)
    name = ""
    for rank in range(ranks):
        path = shard_path(part, ranks, rank)
        # Not `mmap`: the file is written again. Not `weights_only`: this user's own run has just written it.
        shard: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=False)
        name = name or _choose(list(shard))
        weight = shard[name]
        local = weight.to_local() if hasattr(weight, "to_local") else weight
        local.add_(_ADDED) if "lora_B" in name else local.mul_(_FACTOR)
        torch.save(shard, path)
    step = int(checkpoint.name.rpartition("_")[2])
    write_manifest(checkpoint, step, _key())
    return name


def _choose(names: list[str]) -> str:
    """The weight to change.

    Example:
        >>> _choose(["model.layers.0.input_layernorm.weight", "model.norm.weight", "lm_head.weight"])
        'model.norm.weight'
    """
    adapters = [name for name in names if "lora_B" in name]
    norms = [name for name in names if name.endswith("norm.weight") and ".layers." not in name]
    return (adapters or norms or [names[-1]])[-1]


def _key() -> bytes | None:
    try:
        return signing_key()
    except RecordError:
        return None
