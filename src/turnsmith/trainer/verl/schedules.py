"""A trainer class for each `training.schedule`."""

from __future__ import annotations

from pathlib import Path

from verl.trainer.ppo.v1 import PPOTrainerColocateAsync, PPOTrainerSync, trainer_base

from turnsmith.errors import TrainingFailure
from turnsmith.trainer.verl.trainer import EpisodeTrainer
from turnsmith.trainer.verl.workers import PARTITION, put_back_groups


class SyncTrainer(EpisodeTrainer, PPOTrainerSync):
    """Generates all episodes of a step, then trains on them."""


class ColocatedAsyncTrainer(EpisodeTrainer, PPOTrainerColocateAsync):
    """A step trains on the groups that finish first; the others pause during the update, then continue."""

    carries = True
    _is_loaded = False

    @property
    def saves_late(self) -> bool:
        """No: the groups of a failed step are neither in the dataset's position nor in the queue."""
        return False

    def on_train_begin(self) -> None:
        """Dispatch one batch ahead, or what is missing of it after an earlier `fit`."""
        self._restored_tq_prompt_count = trainer_base._count_tq_prompt_groups()
        super().on_train_begin()

    def load(self, checkpoint: Path) -> None:
        """Load a checkpoint. Groups that were not trained on by then are replayed from their starts."""
        if trainer_base._count_tq_prompt_groups():
            raise TrainingFailure(
                "Episodes of this run are in flight and cannot be cancelled: with training.schedule=colocate_async, "
                "load a checkpoint before the first step, in a new trainer."
            )
        super().load(checkpoint)
        put_back_groups()  # the records of finished ones were lost with their process
        self._is_loaded = True

    def _reissue_inflight_prompts(self, partition_id: str = PARTITION) -> int:
        # verl does this whenever training begins, and mistakes groups in flight for groups of a checkpoint.
        is_loaded, self._is_loaded = self._is_loaded, False
        return super()._reissue_inflight_prompts(partition_id) if is_loaded else 0


def trainer_class(schedule: str) -> type[EpisodeTrainer]:
    """The trainer class for a `training.schedule`."""
    return ColocatedAsyncTrainer if schedule == "colocate_async" else SyncTrainer
