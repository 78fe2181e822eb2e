"""Checkpoints with a model, for commands that read them."""

from __future__ import annotations

from turnsmith.records.checkpoints import PendingCheckpoint
from turnsmith.records.run_folder import RunFolder


def save_models(run: RunFolder, *steps: int) -> None:
    """Save a checkpoint of each step, whose model is one file."""
    for step in steps:
        pending = PendingCheckpoint(run.checkpoints_dir, step)
        (pending.path / "actor" / "huggingface").mkdir(parents=True)
        (pending.path / "actor" / "huggingface" / "model.safetensors").write_text("weights")
        pending.seal()
        pending.commit()
