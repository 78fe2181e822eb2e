"""verl's synchronous V1 trainer, with our reports, our checkpoints' place and no two-second sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from verl.trainer.ppo.v1 import PPOTrainerSync, trainer_base

from turnwise.errors import TrainingFailure
from turnwise.trainer.step_report import EpisodeReport, step_record
from turnwise.trainer.verl.server_pool import PooledServerManager

Emit = Callable[[str, Any], None]
"""Called with what happened (`phase`, `step`, `checkpoint`) and its content."""

_POLL_SHARE = 0.02
_POLL_SECONDS = (0.005, 0.5)


class EpisodeTrainer(PPOTrainerSync):
    """Trains on episodes. Everything that learns is verl's; this class only watches and names things."""

    agent_loop_manager: Any  # an EpisodeWorkers, which has the face of verl's manager but not its base class

    def __init__(self, config: Any, emit: Emit, *, save_every: int, steps_in_epoch: int) -> None:
        # verl builds its server manager by this name in its own module; ours needs no balancer process.
        trainer_base.LLMServerManager = PooledServerManager
        super().__init__(config)
        self.emit = emit
        self.save_every = save_every
        self.steps_in_epoch = steps_in_epoch
        self.episodes = EpisodeReport()

    def _build_replay_buffer(self) -> Any:
        buffer = super()._build_replay_buffer()
        began = time.monotonic()

        def wait_for_next_poll(partition_id: str, last_debug_time: float) -> float:
            # verl sleeps for 2 s between looks. A share of what was already waited costs at most that share.
            waited = time.monotonic() - self._sampling_since
            time.sleep(min(max(_POLL_SHARE * waited, _POLL_SECONDS[0]), _POLL_SECONDS[1]))
            return last_debug_time

        self._sampling_since = began
        buffer._wait_for_next_poll = wait_for_next_poll
        return buffer

    def continue_until(self, step: int) -> None:
        """Train up to and including optimizer step `step`."""
        self.total_training_steps = step
        self.fit(self.agent_loop_manager)
        # verl leaves its counter one past the last step, and counts up again when it starts.
        self.global_steps = step

    def on_step_begin(self) -> None:
        """Tell that a step begins."""
        super().on_step_begin()
        self.emit("phase", "generate")

    def on_sample_begin(self) -> None:
        """Remember when waiting for episodes began."""
        super().on_sample_begin()
        self._sampling_since = time.monotonic()

    def on_sample_end(self) -> None:
        """Record the step's episodes, now that all of them have ended."""
        self.episodes = self.agent_loop_manager.finish_step(self.global_steps)
        super().on_sample_end()

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> Any:
        """One optimizer step; a batch in which every episode failed stops the run with the first failure in words."""
        try:
            return super().step(metrics, timing_raw)
        except RuntimeError as error:
            if "no materializable trajectories" not in str(error):
                raise
            report = self.agent_loop_manager.finish_step(self.global_steps)
            raise TrainingFailure(
                f"Step {self.global_steps}: none of {sum(report.outcomes.values())} episodes can be trained on "
                f"({dict(report.outcomes)}). The first one failed with: {report.first_error or 'no turn was taken'}"
            ) from error

    def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        self.emit("phase", "old_log_prob")
        return super()._compute_old_log_prob(batch, metrics)

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        self.emit("phase", "update_actor")
        return super()._update_actor(batch, metrics)

    def on_step_end(self) -> None:
        """Send the new weights to the rollout servers, and save when it is time."""
        self.emit("phase", "sync_weights")
        super().on_step_end()
        last = self.global_steps >= self.total_training_steps
        if self.save_every and (last or self.global_steps % self.save_every == 0):
            with trainer_base.marked_timer("save_checkpoint", self.timing_raw):
                self.save(Path(self.config.trainer.default_local_dir))

    def _compute_metrics(
        self, batch: Any, metrics: dict[str, Any], timing_raw: Any, global_steps: int, epoch: int
    ) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, global_steps, epoch)
        epoch = (global_steps - 1) // self.steps_in_epoch
        self.emit("step", step_record(global_steps, epoch, metrics, self.episodes))

    def save(self, folder: Path) -> Path:
        """Save model, optimizer and data position under `folder`; return the checkpoint's own folder."""
        self.config.trainer.default_local_dir, usual = str(folder), self.config.trainer.default_local_dir
        try:
            self._save_checkpoint()
        finally:
            self.config.trainer.default_local_dir = usual
        saved = folder / f"global_step_{self.global_steps}"
        self.emit("checkpoint", str(saved))
        return saved

    def load(self, checkpoint: Path) -> None:
        """Load a checkpoint's own folder and give its weights to the rollout servers."""
        self.config.trainer.resume_mode = "resume_path"
        self.config.trainer.resume_from_path = str(checkpoint)
        self._load_checkpoint()
        # verl decorates it: outside an event loop it has run when it returns.
        _ = self.checkpoint_manager.update_weights(self.global_steps)
