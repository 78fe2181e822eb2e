"""How generation and training take turns: a trainer for each `training.schedule` that can run."""

from __future__ import annotations

from pathlib import Path

from verl.trainer.ppo.v1 import PPOTrainerColocateAsync, PPOTrainerSync, trainer_base

from turnsmith.errors import TrainingFailure
from turnsmith.trainer.verl.trainer import EpisodeTrainer
from turnsmith.trainer.verl.workers import PARTITION, put_back_groups


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
        put_back_groups()  # the records of those that had ended have gone with their process
        self._is_loaded = True

    def _reissue_inflight_prompts(self, partition_id: str = PARTITION) -> int:
        # verl does this whenever training begins, and takes groups that are being played for groups of a checkpoint.
        is_loaded, self._is_loaded = self._is_loaded, False
        return super()._reissue_inflight_prompts(partition_id) if is_loaded else 0


def trainer_class(schedule: str) -> type[EpisodeTrainer]:
    """The trainer for a `training.schedule`."""
    return ColocatedAsyncTrainer if schedule == "colocate_async" else SyncTrainer
