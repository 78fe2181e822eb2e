"""How generation and training take turns: a trainer for each `training.schedule` that can run."""

from __future__ import annotations

from pathlib import Path

import transfer_queue
from verl.trainer.ppo.v1 import PPOTrainerColocateAsync, PPOTrainerSync, trainer_base

from turnwise.errors import TrainingFailure
from turnwise.trainer.verl.episode_trainer import EpisodeTrainer
from turnwise.trainer.verl.episode_workers import PARTITION


class SyncTrainer(EpisodeTrainer, PPOTrainerSync):
    """All episodes of a step, then the step."""


class ColocatedAsyncTrainer(EpisodeTrainer, PPOTrainerColocateAsync):
    """A step takes the groups that ended first; the others stand still while the model learns, then go on with it."""

    carries = True
    _is_loaded = False

    @property
    def saves_late(self) -> bool:
        """No: the groups of a step that failed are in neither the data's position nor the queue."""
        return False

    def on_train_begin(self) -> None:
        """Send one batch ahead, or what is missing of it: some of it may be there from the training before."""
        self._restored_tq_prompt_count = trainer_base._count_tq_prompt_groups()
        super().on_train_begin()

    def load(self, checkpoint: Path) -> None:
        """Load a checkpoint. Groups that were not trained on by then are all played again, from their starts."""
        if trainer_base._count_tq_prompt_groups():
            raise TrainingFailure(
                "Episodes of this run are on their way, and cannot be called back: with training.schedule="
                "colocate_async load a checkpoint before the first step, in a trainer of its own."
            )
        super().load(checkpoint)
        _put_back_all_groups()
        self._is_loaded = True

    def _reissue_inflight_prompts(self, partition_id: str = PARTITION) -> int:
        # verl does this whenever training begins, and takes groups that are being played for groups of a checkpoint.
        is_loaded, self._is_loaded = self._is_loaded, False
        return super()._reissue_inflight_prompts(partition_id) if is_loaded else 0


def trainer_of(schedule: str) -> type[EpisodeTrainer]:
    """The trainer for a `training.schedule`."""
    return ColocatedAsyncTrainer if schedule == "colocate_async" else SyncTrainer


def _put_back_all_groups() -> None:
    """Mark all groups in the queue as not yet played: the records of those that were have gone with their process."""
    held = (transfer_queue.kv_list(PARTITION) or {}).get(PARTITION, {})
    groups = [key for key, tag in held.items() if tag.get("is_prompt", False)]
    episodes = [key for key in held if key not in set(groups)]
    if episodes:
        transfer_queue.kv_clear(keys=episodes, partition_id=PARTITION)
    if groups:
        tags = [{**held[key], "status": "pending"} for key in groups]
        transfer_queue.kv_batch_put(keys=groups, partition_id=PARTITION, tags=tags)
