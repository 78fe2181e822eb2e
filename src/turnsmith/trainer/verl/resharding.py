"""Loads a checkpoint that another number of ranks wrote. Runs on the ranks.

verl has each rank load its own file, so it needs as many ranks as before. Here each rank reads, from all files, the
blocks that it now holds. With the number of ranks that wrote the checkpoint, verl's own code loads it.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
from verl.utils.device import get_torch_device

from turnsmith.errors import RecordError
from turnsmith.trainer.checkpoints.hugging_face import joined, read_shards, saved_ranks, shard_path


class ReshardingManager(FSDPCheckpointManager):
    """verl's manager of a rank's checkpoints, which loads those of any number of ranks."""

    def load_checkpoint(self, local_path: str, hdfs_path: Any = None, del_local_after_load: bool = False) -> None:
        """Load `actor/` or `critic/` of a checkpoint."""
        if saved_ranks(Path(local_path)) == self.world_size:
            super().load_checkpoint(local_path, hdfs_path, del_local_after_load)
        else:
            load_resharded(self, Path(local_path))
            torch.distributed.barrier()


def load_resharded(manager: Any, part: Path) -> None:
    """Load `actor/` or `critic/` of a checkpoint that another number of ranks wrote."""
    if manager.should_load_model:
        _load_model(manager, part)
    if manager.should_load_optimizer:
        _load_optimizer(manager.optimizer, part)
    if manager.should_load_extra:
        # With code, as in verl: it has the random states of numpy and Python.
        extra = torch.load(shard_path(part, saved_ranks(part), 0, "extra_state"), weights_only=False)
        if extra["lr_scheduler"] is not None and manager.lr_scheduler is not None:
            manager.lr_scheduler.load_state_dict(extra["lr_scheduler"])  # the same on all ranks
        if "rng" in extra:
            manager.load_rng_state(extra["rng"])
            _seed(int(torch.randint(2**31, ())) + manager.rank)


def _load_model(manager: Any, part: Path) -> None:
    shards = read_shards(part)
    held: dict[str, Any] = manager.model.state_dict()
    unknown = shards[0].keys() - held.keys()
    if unknown:
        raise RecordError(f"{part} has weights called {min(unknown)}, which the model does not have.")
    weights = {name: _block(name, [shard[name] for shard in shards], held[name]) for name in shards[0]}
    manager.model.load_state_dict(weights, strict=not manager.is_lora_only_state_dict(weights))


def _load_optimizer(optimizer: Any, part: Path) -> None:
    shards = read_shards(part, "optim")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = {
        number: {
            name: _block(f"{name} of parameter {number}", [shard["state"][number][name] for shard in shards], parameter)
            for name in shards[0]["state"][number]
        }
        for number, parameter in enumerate(parameters)
        if number in shards[0]["state"]
    }
    optimizer.load_state_dict({"state": state, "param_groups": shards[0]["param_groups"]})


def _block(name: str, parts: list[Any], held: Any) -> Any:
    """This rank's part of a tensor that is sharded like `held`."""
    if not isinstance(parts[0], DTensor):  # the same on all ranks, such as the number of steps
        return parts[0].clone() if isinstance(parts[0], torch.Tensor) else parts[0]
    mesh, placements = held.device_mesh, held.placements
    shape, offset = compute_local_shape_and_global_offset(parts[0].shape, mesh, placements)
    local = joined(name, parts, shape, offset).to(held.to_local().device)
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=parts[0].shape, stride=parts[0].stride())


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    get_torch_device().manual_seed(seed)
