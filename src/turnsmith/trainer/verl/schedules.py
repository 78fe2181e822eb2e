"""A trainer class for each `training.schedule`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from verl.trainer.ppo.v1 import PPOTrainerColocateAsync, PPOTrainerSync, trainer_base, trainer_separate_async
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync

from turnsmith.errors import TrainingFailure
from turnsmith.records.run_state import EventKind
from turnsmith.trainer.checkpoints.contents import GROUPS_UNDER_WAY
from turnsmith.trainer.verl.lost_and_joined_servers import JoinedServers, LivingReplicas
from turnsmith.trainer.verl.replay_buffer import AsyncEpisodeReplayBuffer
from turnsmith.trainer.verl.server_pool import PooledServerManager
from turnsmith.trainer.verl.trainer import EpisodeTrainer
from turnsmith.trainer.verl.workers import PARTITION, put_back_groups

_KEPT = 0
"""The number under which verl keeps the weights of a step's beginning, if a step has several updates."""
_NOW = -1
"""The number under which we keep the current weights while the others are sent."""


class SyncTrainer(EpisodeTrainer, PPOTrainerSync):
    """Generates all episodes of a step, then trains on them."""


class AsyncTrainer(EpisodeTrainer):
    """Generates ahead: a step trains on groups that were dispatched in it or in an earlier one.

    Abstract: the two asynchronous schedules differ in where the rollout servers are.
    """

    carries = True
    _is_loaded = False

    @property
    def saves_late(self) -> bool:
        """False: neither the dataset's position nor the queue has the groups of a failed step."""
        return False

    def _build_replay_buffer(self) -> AsyncEpisodeReplayBuffer:
        more: dict[str, Any] = {"updates_left": lambda: self.updates_left, "max_staleness": self.max_staleness}
        return AsyncEpisodeReplayBuffer(**self._buffer_settings(), **more)

    @property
    def max_staleness(self) -> int:
        """`training.max_staleness`."""
        return self.plan.config.training.max_staleness

    def on_train_begin(self) -> None:
        """Dispatch the groups that are generated ahead, or those still missing after an earlier `fit`."""
        self._restored_tq_prompt_count = trainer_base._count_tq_prompt_groups()
        super().on_train_begin()

    def state(self) -> dict[str, Any]:
        """State for a checkpoint that verl does not save, in plain values."""
        return {**super().state(), GROUPS_UNDER_WAY: trainer_base._count_tq_prompt_groups()}

    def load(self, checkpoint: Path) -> None:
        """Load a checkpoint. Groups that it was not trained on are replayed from their starts."""
        if trainer_base._count_tq_prompt_groups():
            raise TrainingFailure(
                "Episodes of this run are in flight and cannot be cancelled: with an asynchronous training.schedule, "
                "load a checkpoint before the first step, in a new trainer."
            )
        super().load(checkpoint)
        under_way = len(put_back_groups())  # the records of finished ones were lost with their process
        if under_way > self.max_staleness * self.groups_per_step:
            raise TrainingFailure(
                f"{checkpoint.name} has {under_way} groups under way, but with training.max_staleness="
                f"{self.max_staleness} and {self.groups_per_step} groups a step no more than "
                f"{self.max_staleness * self.groups_per_step} can be: resume with the values that it was saved with."
            )
        self._is_loaded = True

    def _reissue_inflight_prompts(self, partition_id: str = PARTITION) -> int:
        # verl does this whenever training begins, and takes groups in flight for groups of a checkpoint.
        is_loaded, self._is_loaded = self._is_loaded, False
        return super()._reissue_inflight_prompts(partition_id) if is_loaded else 0


class ColocatedAsyncTrainer(AsyncTrainer, PPOTrainerColocateAsync):
    """A step trains on the groups that finish first; the others pause during the update, then continue."""


class SeparateAsyncTrainer(AsyncTrainer, PPOTrainerSeparateAsync):
    """Rollout servers on GPUs of their own generate all the time, and pause only while they get new weights."""

    _is_ahead = False
    """Whether the model has been updated since its weights were sent."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        # Like `EpisodeTrainer.__init__` for the other servers.
        trainer_separate_async.LLMServerManager = PooledServerManager
        # verl 0.9.1 passes the logger an argument of `print` when there are no other servers, and fails.
        logging.getLogger(trainer_separate_async.__name__).setLevel(logging.WARNING)
        super().__init__(config, *args, **kwargs)

    def _setup(self) -> None:
        super()._setup()
        theirs = self.standalone_checkpoint_manager
        self.standalone_checkpoint_manager = LivingReplicas(theirs.config, theirs.actor_wg, theirs.replicas)

    @property
    def servers(self) -> list[Any]:
        """Handles of the rollout servers."""
        return self.standalone_server_manager.server_handles

    def init(self) -> None:
        """Start all processes; from then on, nodes that join get rollout servers."""
        super().init()
        self._joined = JoinedServers(
            self.standalone_server_manager, lambda sentence: self.emit(EventKind.WARNING, sentence)
        )

    def joined_servers(self) -> list[Any]:
        """Handles of rollout servers on nodes that have joined since the last call; they have no weights yet."""
        replicas = self._joined.poll()
        handles = [replica.server_handle for replica in replicas]
        self.standalone_checkpoint_manager.add_replicas(replicas)
        self.standalone_server_manager.server_handles += handles
        return handles

    def send_weights(self, version: int) -> None:
        """Send the weights of `version` to all servers: between two updates, those of the step's beginning."""
        ranks: Any = self.actor_rollout_wg
        manager: Any = self.standalone_checkpoint_manager
        if not self._is_ahead:
            manager.update_weights(version)
            return
        ranks.save_model_to_cpu(_NOW)
        ranks.restore_model_from_cpu(_KEPT)
        try:
            manager.update_weights(version)
        finally:
            ranks.restore_model_from_cpu(_NOW)
            ranks.clear_cpu_model(_NOW)

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        batch = super()._update_actor(batch, metrics)
        bypasses = self.config.algorithm.rollout_correction.get("bypass_mode")  # then verl keeps no weights
        self._is_ahead = not bypasses
        return batch

    def on_step_end(self) -> None:
        """Send the new weights to the rollout servers, and save a checkpoint if one is due."""
        super().on_step_end()
        self._is_ahead = False


_TRAINERS: dict[str, type[EpisodeTrainer]] = {
    "sync": SyncTrainer,
    "colocate_async": ColocatedAsyncTrainer,
    "separate_async": SeparateAsyncTrainer,
}


def trainer_class(schedule: str) -> type[EpisodeTrainer]:
    """The trainer class for a `training.schedule`."""
    return _TRAINERS[schedule]
