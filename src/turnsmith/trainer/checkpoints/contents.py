"""What we add to verl's checkpoints, and whether a checkpoint fits the run that is to load it.

The past models that other players are played by are hard links to the models in the checkpoints: a checkpoint is pruned
one day; the model that others play with stays, and takes no further space until then.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from turnsmith.config import ConfigStore
from turnsmith.errors import RecordError
from turnsmith.importing import installed_version
from turnsmith.inference.chat import read_template
from turnsmith.inference.models import resolve
from turnsmith.records.checkpoint_manifest import MANIFEST, Checksum, checksums
from turnsmith.records.checkpoints import (
    Checkpoint,
    Warn,
    newest_checkpoint,
    open_checkpoint,
    read_state,
    saved_steps,
    write_state,
)
from turnsmith.rollout.players import past_model, past_models
from turnsmith.trainer.checkpoints.hugging_face import (
    ADAPTER,
    finish_model,
    saved_ranks,
    shard_path,
    write_adapter,
    write_template,
    write_weights,
)
from turnsmith.trainer.config.layout import save_minutes, sends_adapter, storage_units, trainer_ranks

GROUPS_UNDER_WAY = "groups_under_way"
"""In the state of a checkpoint of an asynchronous run: how many groups were dispatched and not trained on yet."""
OnEveryRank = Callable[[Callable[[int], dict[str, Checksum]]], list[dict[str, Checksum]]]
_PACKAGES = ("turnsmith", "verl", "torch", "transformers")


@dataclass(frozen=True)
class CheckpointPolicy:
    """When to save a checkpoint, and what is in it."""

    every: int
    """Epochs between two checkpoints; 0: none."""
    keep_last_n: int
    with_model: bool
    trust_remote_code: bool
    chat_template: str | None = None
    """The text of `model.chat_template`."""
    adapter_of: str | None = None
    """The model that an adapter belongs to which is all that is saved."""
    minutes: float = 0.0
    """Minutes between two checkpoints, in place of epochs; 0: by epochs."""

    @classmethod
    def of(cls, config: ConfigStore) -> CheckpointPolicy:
        """The policy in a run's settings."""
        checkpoint, model, is_adapter = config.checkpoint, config.model, sends_adapter(config)
        return cls(
            every=checkpoint.save_interval,
            minutes=save_minutes(config),
            keep_last_n=checkpoint.keep_last_n,
            with_model=checkpoint.save_model and not is_adapter,
            trust_remote_code=model.trust_remote_code,
            chat_template=read_template(model.chat_template),
            adapter_of=resolve(model.model_name, model.local_path) if is_adapter else None,
        )


def complete(
    checkpoint: Path, saving: CheckpointPolicy, state: Mapping[str, Any], on_every_rank: OnEveryRank
) -> dict[str, Checksum]:
    """Add what verl does not write: the model as a Hugging Face folder, our own state, and package versions.

    Args:
        checkpoint: What verl wrote.
        saving: What to add.
        state: Our own state.
        on_every_rank: Calls a function with the number of each rank, in its process, and returns the answers.

    Returns:
        The checksums of all large files, from the ranks that wrote them.
    """
    actor = checkpoint / "actor"
    ranks = saved_ranks(actor)
    missing = [rank for rank in range(ranks) if not shard_path(actor, ranks, rank).is_file()]
    if missing:
        raise RecordError(
            f"The weights of rank {missing[0]} are not in {actor}: on several nodes, checkpoint.output_dir must be a "
            "shared folder."
        )
    hashed = on_every_rank(partial(finish_rank, checkpoint, ranks, saving))
    write_template(actor / "huggingface", saving.chat_template)
    if saving.with_model:
        finish_model(actor, actor / "huggingface")
    if saving.adapter_of is not None:
        write_adapter(actor, actor / ADAPTER, base_model=saving.adapter_of)
    write_state(checkpoint, {**state, "versions": _versions()})
    return {name: one for sums in hashed for name, one in sums.items()}


def finish_rank(checkpoint: Path, ranks: int, saving: CheckpointPolicy, rank: int) -> dict[str, Checksum]:
    """Hash what a rank wrote, and meanwhile write and hash its share of the Hugging Face folder. Runs on the rank."""

    def hashed(files: Iterable[Path]) -> dict[str, Checksum]:
        return checksums(checkpoint, [file.relative_to(checkpoint).as_posix() for file in files])

    actor = checkpoint / "actor"
    with ThreadPoolExecutor(1) as thread:
        shards = thread.submit(hashed, checkpoint.glob(f"*/*_world_size_{ranks}_rank_{rank}.pt"))
        pieces: list[Path] = []
        if saving.with_model:
            code, target = saving.trust_remote_code, actor / "huggingface"
            pieces = write_weights(actor, target, trust_remote_code=code, place=rank, places=ranks)
        return hashed(pieces) | shards.result()


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
    """Warn if the checkpoint was written by another number of ranks or by other package versions.

    Raises:
        RecordError: It has episodes under way that the run could not take over.
    """
    _check_under_way(checkpoint.path, config)
    saved, now = saved_ranks(checkpoint.path / "actor"), trainer_ranks(config)
    if saved != now:
        warn(
            f"{checkpoint.path.name} was written by {saved} ranks and is loaded by {now}. Weights, optimizer, learning "
            "rate and data go on as saved; the ranks' random numbers (dropout) are new, and sums are rounded otherwise."
        )
    before, present = read_state(checkpoint.path).get("versions", {}), _versions()
    changed = [f"{name} {before[name]} (now {present[name]})" for name in before if before[name] != present.get(name)]
    if changed:
        warn(f"{checkpoint.path.name} was written with {', '.join(changed)}: results may differ.")


def _check_under_way(checkpoint: Path, config: ConfigStore) -> None:
    """Refuse to lose the groups that an asynchronous run had under way: verl saves them with its queue."""
    units = checkpoint / "transfer_queue" / "simple_storage" / "storage_unit_info.json"
    if not units.is_file():
        return
    if config.training.schedule == "sync":
        groups = read_state(checkpoint).get(GROUPS_UNDER_WAY, "some")
        if not groups:
            return
        raise RecordError(
            f"{checkpoint.name} has {groups} groups of episodes under way, which training.schedule=sync would never "
            "train on: resume it with the asynchronous schedule that it was saved with."
        )
    saved, now = len(json.loads(units.read_text(encoding="utf-8"))), storage_units(config)
    if saved != now:
        raise RecordError(
            f"{checkpoint.name} has its episodes under way in {saved} storage processes of TransferQueue, but this run "
            f"would have {now}: resume it with the ray.num_nodes and ray.rollout_nodes that it was saved with."
        )


def _versions() -> dict[str, str]:
    return {name: installed_version(name) or "none" for name in _PACKAGES}


def add_past_model(pool: Path, checkpoint: Path, step: int) -> None:
    """Add the model of a checkpoint, in place of one that was added for the same step."""
    model, target = checkpoint / "actor" / "huggingface", past_model(pool, step)
    if not any(model.glob("*.safetensors")):  # a checkpoint of another run, which was saved without it
        return
    temporary = pool / f".{target.name}"
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(model, temporary, copy_function=_link)
    shutil.rmtree(target, ignore_errors=True)
    temporary.rename(target)


def drop_later_models(pool: Path, step: int) -> None:
    """Remove the models of steps after this one: they are made again."""
    for later in past_models(pool):
        if later > step:
            shutil.rmtree(past_model(pool, later))


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # not every file system has hard links
        shutil.copy2(source, target)
