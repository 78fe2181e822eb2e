"""Ranks with a tiny sharded model that save and load checkpoints through verl, in several numbers one after another."""

from __future__ import annotations

import multiprocessing
import sys
import time
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

_SECONDS = 240.0
SAVED = {
    # name: (shape of the mesh, what it loads)
    "four": ((4,), None),
    "four_again": ((4,), "four"),
    "two": ((2,), "four"),
    "one": ((1,), "four"),
    "from_one": ((4,), "one"),
    "replicas": ((2, 2), "two"),
    "three": ((3,), "replicas"),
}


def main(folder: Path) -> None:
    """Start four processes, once what takes longest to import is imported."""
    import turnsmith.trainer.verl.resharding  # noqa: F401

    forked = multiprocessing.get_context("fork")
    ranks = [forked.Process(target=all_turns, args=(folder, rank)) for rank in range(4)]
    for rank in ranks:
        rank.start()
    left, until = ranks, time.monotonic() + _SECONDS
    while left and time.monotonic() < until and not any(rank.exitcode for rank in ranks):
        wait([rank.sentinel for rank in left], timeout=1.0)
        left = [rank for rank in ranks if rank.is_alive()]
    for rank in left:
        rank.kill()
    sys.exit(any(rank.exitcode != 0 for rank in ranks))


def all_turns(folder: Path, rank: int) -> None:
    """Go through `SAVED` as one of the ranks; ranks that a mesh does not need wait."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    for name, (shape, loads) in SAVED.items():
        ranks = torch.Size(shape).numel()
        if rank < ranks:
            store = f"file://{folder}/store-{name}"
            distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
            one_turn(folder, name, shape, loads)
            distributed.destroy_process_group()


def one_turn(folder: Path, name: str, shape: tuple[int, ...], loads: str | None) -> None:
    """Load what another number of ranks saved, or train; then save, with everything unsharded beside it."""
    import torch
    from torch import distributed

    from turnsmith.trainer.verl.resharding import ReshardingManager

    model, optimizer, schedule = _sharded(shape)
    manager = ReshardingManager(model, optimizer, schedule, None, {})
    rank = distributed.get_rank()
    if loads is None:
        torch.manual_seed(100 + rank)
        for _ in range(3):
            model(torch.randint(7, (2, 5))).logits.square().sum().backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    else:
        manager.load_checkpoint(str(folder / loads))
    manager.save_checkpoint(str(folder / name), global_step=3)
    # Weights and optimizer, put together by torch's collectives and not by our reader of files.
    whole: dict[str, Any] = {name: one.full_tensor() for name, one in model.state_dict().items()}
    for parameter, state in optimizer.state.items():
        named = next(name for name, one in model.named_parameters() if one is parameter)
        for key, value in state.items():
            whole[f"{named} {key}"] = value.full_tensor() if hasattr(value, "full_tensor") else value
    whole["rate"] = torch.tensor(schedule.get_last_lr())
    whole["groups"] = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    whole["drawn"] = torch.rand(4)
    torch.save(whole, folder / f"{name}-{rank}.pt")


def _sharded(shape: tuple[int, ...]) -> tuple[Any, Any, Any]:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from transformers import LlamaConfig, LlamaForCausalLM

    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("fsdp",) if len(shape) == 1 else ("ddp", "fsdp"))
    torch.manual_seed(len(shape) + shape[0])  # other weights in each, so that what is not loaded shows
    # Rows that no number of ranks divides; of 6 rows the last of four ranks holds none.
    config = LlamaConfig(
        vocab_size=7,
        hidden_size=12,
        intermediate_size=10,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    model: Any = LlamaForCausalLM(config)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
