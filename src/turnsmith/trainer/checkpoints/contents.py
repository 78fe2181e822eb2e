"""What we add to verl's checkpoints, and whether a checkpoint fits the run that is to load it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnsmith.config import ConfigStore
from turnsmith.errors import RecordError
from turnsmith.importing import installed_version
from turnsmith.records.checkpoint_manifest import MANIFEST
from turnsmith.records.checkpoints import (
    Checkpoint,
    Warn,
    newest_checkpoint,
    open_checkpoint,
    read_state,
    saved_steps,
    write_state,
)
from turnsmith.trainer.checkpoints.fsdp_shards import saved_ranks, shard_path
from turnsmith.trainer.checkpoints.hugging_face import write_model

_PACKAGES = ("turnsmith", "verl", "torch", "transformers")


@dataclass(frozen=True)
class CheckpointPolicy:
    """When to save a checkpoint, and what is in it."""

    every: int
    """Steps between two checkpoints; 0: none."""
    keep_last_n: int
    with_model: bool
    trust_remote_code: bool

    @classmethod
    def of(cls, config: ConfigStore, steps_in_epoch: int) -> CheckpointPolicy:
        """The policy in a run's settings."""
        checkpoint = config.checkpoint
        return cls(
            every=checkpoint.save_interval * steps_in_epoch,
            keep_last_n=checkpoint.keep_last_n,
            with_model=checkpoint.save_model,
            trust_remote_code=config.model.trust_remote_code,
        )


def complete(checkpoint: Path, saving: CheckpointPolicy, state: Mapping[str, Any]) -> None:
    """Add what verl does not write: the model as a Hugging Face folder, our own state, and package versions."""
    actor = checkpoint / "actor"
    ranks = saved_ranks(actor)
    missing = [rank for rank in range(ranks) if not shard_path(actor, ranks, rank).is_file()]
    if missing:
        raise RecordError(
            f"The weights of rank {missing[0]} are not in {actor}: on several nodes, checkpoint.output_dir must be a "
            "shared folder."
        )
    if saving.with_model:
        write_model(actor, actor / "huggingface", trust_remote_code=saving.trust_remote_code)
    write_state(checkpoint, {**state, "versions": _versions()})


def find_checkpoint(path: Path, *, trust: bool, warn: Warn) -> Checkpoint:
    """The checkpoint at a path: its own folder, or the newest one in a folder of checkpoints or in a run folder."""
    path = path.absolute()
    if path.name.startswith("global_step_"):
        if trust and path.is_dir() and not (path / MANIFEST).exists():  # written by verl itself
            return Checkpoint(path, int(path.name.removeprefix("global_step_")), signed=False)
        return open_checkpoint(path, trust=trust)
    inside = path / "checkpoints"
    return newest_checkpoint(inside if inside.is_dir() and not saved_steps(path) else path, trust=trust, warn=warn)


def check_fit(checkpoint: Checkpoint, config: ConfigStore, warn: Warn) -> None:
    """Raise if a run with these settings cannot load the checkpoint; warn if package versions differ."""
    saved, now = saved_ranks(checkpoint.path / "actor"), config.ray.num_nodes * config.ray.gpus_per_node
    if saved != now:
        raise RecordError(
            f"{checkpoint.path} was written by {saved} trainer processes and cannot be loaded by {now}: set "
            f"ray.num_nodes times ray.gpus_per_node to {saved}, or export the model and train that."
        )
    before, present = read_state(checkpoint.path).get("versions", {}), _versions()
    changed = [f"{name} {before[name]} (now {present[name]})" for name in before if before[name] != present.get(name)]
    if changed:
        warn(f"{checkpoint.path.name} was written with {', '.join(changed)}: results may differ.")


def _versions() -> dict[str, str]:
    return {name: installed_version(name) or "none" for name in _PACKAGES}
