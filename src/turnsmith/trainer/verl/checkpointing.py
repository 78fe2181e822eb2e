"""Checkpoints of a training run: what verl saves, what it does not, and the models of the past."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from verl.trainer.ppo.v1 import trainer_base

from turnsmith.records.checkpoints import PendingCheckpoint, read_state
from turnsmith.trainer.checkpoints.contents import complete
from turnsmith.trainer.checkpoints.past_models import add_past_model, drop_later_models
from turnsmith.trainer.epochs import Epochs
from turnsmith.trainer.verl.recovery import RecoveringTrainer
from turnsmith.trainer.verl.resharding import load_from_any_number_of_ranks


class CheckpointingTrainer(RecoveringTrainer):
    """The part of a trainer that saves and loads.

    A checkpoint is written at the end of a step, and gets its name once the step is recorded: the run folder has every
    step up to a checkpoint.
    """

    epochs = Epochs()
    """Those of the current `fit`."""
    pool: Path | None = None
    """The folder of this run's past models, if they play; see `Players`."""
    _pending: PendingCheckpoint | None = None
    """What was written in this step."""

    @property
    def _is_last(self) -> bool:
        return self.global_steps >= self.total_training_steps

    def _begin_checkpoint(self) -> None:
        self.emit("phase", "save_checkpoint")
        with trainer_base.marked_timer("save_checkpoint", self.timing_raw):
            self._pending = self._write(Path(self.config.trainer.default_local_dir))

    def state(self) -> dict[str, Any]:
        """State for a checkpoint that verl does not save, in plain values."""
        kl_coef = self.kl_ctrl_in_reward.value if self.config.algorithm.use_kl_in_reward else None
        return {"step": self.global_steps, "epoch": self.epochs.of(self.global_steps), "kl_coef": kl_coef}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a `state`."""
        if self.config.algorithm.use_kl_in_reward and state.get("kl_coef") is not None:
            self.kl_ctrl_in_reward.value = float(state["kl_coef"])

    def save(self, folder: Path) -> Path:
        """Save model, optimizer and data position under `folder`; return the checkpoint's own folder."""
        return self._commit(self._write(folder))

    def _write(self, folder: Path) -> PendingCheckpoint:
        pending = PendingCheckpoint(folder, self.global_steps)
        self.config.trainer.default_local_dir, usual = str(pending.path.parent), self.config.trainer.default_local_dir
        try:
            self._save_checkpoint()
        finally:
            self.config.trainer.default_local_dir = usual
        pending.add_checksums(complete(pending.path, self.saving, self.state(), self.on_every_rank))
        pending.seal(lambda sentence: self.emit("warning", sentence))
        return pending

    def on_every_rank(self, function: Callable[[int], Any]) -> list[Any]:
        """Call a function with the number of each rank, in that rank's process."""
        ranks: Any = self.actor_rollout_wg.workers
        # Ray calls it with the actor itself first.
        return ray.get(
            [one.__ray_call__.remote(lambda _, rank: function(rank), rank) for rank, one in enumerate(ranks)]
        )

    def _commit(self, pending: PendingCheckpoint) -> Path:
        self._pending = None
        saved = pending.commit()
        self.emit("checkpoint", str(saved))
        return saved

    def _add_past_model(self, checkpoint: Path) -> None:
        """Let the model play against itself as it was now, after each checkpoint that a repeated run has as well."""
        if self.pool is not None and self.epochs.end_with(self.global_steps, self.saving.every):
            add_past_model(self.pool, checkpoint, self.global_steps)

    def load(self, checkpoint: Path) -> None:
        """Load the checkpoint in this folder and send its weights to the rollout servers."""
        self.config.trainer.resume_mode = "resume_path"
        self.config.trainer.resume_from_path = str(checkpoint)
        self.on_every_rank(load_from_any_number_of_ranks)
        manager: Any = self.checkpoint_manager
        manager.sleep_replicas()  # as verl does: the checkpoint needs the GPU memory. The weights below wake them up.
        self._load_checkpoint()
        self.restore(read_state(checkpoint))
        if self.pool is not None:
            drop_later_models(self.pool, self.global_steps)
            self._add_past_model(checkpoint)  # the run may have been killed before it did
        self.train_dataloader_it = None  # else the iterator in use would continue from where it is
        self.sync_weights(lambda: self.send_weights(self.global_steps), self.global_steps)
