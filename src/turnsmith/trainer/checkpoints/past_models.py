"""The past models of a run that other players are played by: hard links to the models in its checkpoints.

A checkpoint is pruned one day; the model that others play with stays, and takes no further space until then.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from turnsmith.rollout.players import past_model, past_models


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
