"""verl's V1 trainer with our metrics, records and checkpoints, without its two-second polling."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from verl.trainer.ppo.v1 import trainer_base
from verl.utils.tensordict_utils import get_tensordict

from turnsmith.errors import TrainingFailure
from turnsmith.records.advantages import StepAdvantages, write_advantages
from turnsmith.records.checkpoints import prune
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.run_state import EventKind
from turnsmith.records.signed_ledger import LedgerChain
from turnsmith.rollout.episode_report import EpisodeReport
from turnsmith.rollout.ledger import StepLedger
from turnsmith.trainer.advantages import get_estimator
from turnsmith.trainer.checkpoints.contents import CheckpointPolicy
from turnsmith.trainer.diagnostics.context import step_record
from turnsmith.trainer.diagnostics.monitor import StepMonitor
from turnsmith.trainer.run_parts import EpisodePlan
from turnsmith.trainer.validation import EvaluationSchedule, TrainingEvaluations, as_step_metrics
from turnsmith.trainer.verl.dataset import set_curriculum
from turnsmith.trainer.verl.estimators import (
    RunEstimator,
    add_advantages,
    add_trainer_log_probs,
    count_episodes,
    with_row_weights,
)
from turnsmith.trainer.verl.recovery import RecoveringTrainer
from turnsmith.trainer.verl.replay_buffer import NOTHING_TO_TRAIN_ON, EpisodeReplayBuffer, episode_names
from turnsmith.trainer.verl.server_pool import PooledServerManager

Emit = Callable[[EventKind, Any], None]
"""Called with each event: its kind and content."""


class EpisodeTrainer(RecoveringTrainer):
    """Trains on episodes. verl does all the learning; this class adds records, checkpoints and recovery.

    Abstract: `schedules` has a subclass for each `training.schedule`.
    """

    carries = False
    """Whether an episode may continue during an update, and be trained in a later step than it began in."""
    replay_buffer: EpisodeReplayBuffer

    def __init__(
        self,
        config: Any,
        emit: Emit,
        plan: EpisodePlan,
        evaluating: EvaluationSchedule | None = None,
    ) -> None:
        # verl looks this name up in its own module; ours needs no load-balancer process.
        trainer_base.LLMServerManager = PooledServerManager
        self.emit = emit
        self.plan = plan  # before verl's, which builds the replay buffer
        super().__init__(config)
        players = plan.rollout.players
        self.pool = Path(players.pool) if players.has_self else None
        set_curriculum(plan.curriculum)
        self.saving = CheckpointPolicy.of(plan.config)
        training = plan.config.training
        name, estimator = config.algorithm.adv_estimator, get_estimator(training.adv_estimator)
        self._estimator = RunEstimator(name, estimator, training.credit)
        self.episodes = EpisodeReport()
        folder = RunFolder.open(plan.run_dir)
        self._chain = LedgerChain(folder)
        self.monitor = StepMonitor.of_run(
            folder, plan.config, plan.rollout.reward_fn or plan.rollout.environment.load()
        )
        self.evaluations = TrainingEvaluations(evaluating, folder, emit)
        self.balance: StepLedger | None = None
        self._trained: list[str] = []
        self._widening = 1
        self._advantages = StepAdvantages()

    def _setup(self) -> None:
        super()._setup()
        count_episodes(self.config, self.actor_rollout_wg, self.critic_wg if self.use_critic else None)

    def _build_replay_buffer(self) -> EpisodeReplayBuffer:
        return EpisodeReplayBuffer(**self._buffer_settings())

    def _buffer_settings(self) -> dict[str, Any]:
        sampler = self.config.trainer.v1.sampler
        return {
            "trainer_mode": self.trainer_mode,
            "trainer_config": self.config.trainer.v1.get(self.trainer_mode, {}),
            "max_off_policy_threshold": sampler.max_off_policy_threshold,
            "max_off_policy_strategy": sampler.max_off_policy_strategy,
            "sampler_kwargs": sampler.sampler_kwargs,
            "sync_refill_failed_groups": bool(sampler.get("sync_refill_failed_groups", False)),
            "gen_batch_size": 1,
            "on_poll": self.check_processes,
            "collect_records": self._finish_episodes,
            "replace_lost": lambda: self.agent_loop_manager.replace_lost(),
            "groups_per_step": self.groups_per_step,
            "replaces": self.replaces_groups,
            "filters": self.plan.filtered_group_size > 0,
            "dispatch": self._add_prompts_to_generate,
        }

    def _fetch_one_gen_batch(self) -> Any:
        # Ids from the dataset's index, not random as in verl: sampling seeds are derived from them, so a repeated run
        # needs the same ids.
        batch: Any = super()._fetch_one_gen_batch()
        names = [f"{int(index):08d}" for index in batch["index"]]
        batch["uid"] = get_tensordict({"uid": names})["uid"]
        return batch

    def _balance_batch(self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        # Sums of floats must not depend on the order in which episodes finished.
        batch.reorder(sorted(range(len(batch.keys)), key=batch.keys.__getitem__))
        self._trained += episode_names(batch)
        self._widening = self._mini_batch_widening(batch)
        if not self.updates_left:
            self.balance = self.agent_loop_manager.ledger.close(self.global_steps, self._trained)
        return super()._balance_batch(batch, metrics, *args, **kwargs)

    def _mini_batch_widening(self, batch: Any) -> int:
        """How much mini-batches grow if episodes have several segments, so that a step has no more updates.

        verl counts rows. A step whose agents branched would otherwise make more, smaller updates than another.
        """
        per_update = int(self.config.actor_rollout_ref.actor.ppo_mini_batch_size)
        groups = len({key.rsplit("_", 2)[0] for key in batch.keys})
        rows = per_update * self.config.actor_rollout_ref.rollout.n * math.ceil(groups / per_update)
        return max(1, math.ceil(len(batch.keys) / rows))

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        return self._widening * super()._get_required_batch_multiple(dp_size)

    def continue_until(self, step: int) -> None:
        """Train up to and including optimizer step `step`."""
        self.total_training_steps = step
        if self.global_steps == 0 and self.evaluations.is_due(0, last=False):
            self.evaluations.report(self.evaluations.make(0, self.agent_loop_manager))
        self.fit(self.agent_loop_manager)
        # verl leaves its counter one past the last step, and increments it again when it starts.
        self.global_steps = step

    def on_step_begin(self) -> None:
        """Report that a step begins."""
        super().on_step_begin()
        self.replay_buffer.begin_step()
        self.episodes, self._trained, self._advantages = EpisodeReport(), [], StepAdvantages()
        self.emit(EventKind.PHASE, "generate")

    def on_sample_begin(self) -> None:
        """Check the processes here too, because the step may not wait for episodes at all."""
        super().on_sample_begin()
        self.check_processes()

    def _finish_episodes(self, groups: list[str] | None = None) -> bool:
        """Record the episodes of an update; False: a process was lost with some of them, which are replayed."""
        update = self.parameter_sync_step - 1 - self.updates_left
        report = self.agent_loop_manager.finish_step(self.global_steps, groups if self.carries else None, update)
        if report is None:
            return False
        self.train_dataset.record(report.groups, report.successes_by_environment())  # for the curriculum
        self.episodes += report
        return True

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> Any:
        """One optimizer step; if every episode of the batch failed, stop the run with the first failure."""
        try:
            return super().step(metrics, timing_raw)
        except RuntimeError as error:
            if NOTHING_TO_TRAIN_ON not in str(error):
                raise
            if not self._finish_episodes():
                raise
            report = self.episodes
            self._emit_ledger(self.agent_loop_manager.ledger.close(self.global_steps, self._trained))
            raise TrainingFailure(
                f"Step {self.global_steps}: none of {sum(report.outcomes.values())} episodes can be trained on "
                f"({report.ends}). The first failure: {report.first_error or 'no turn was taken'}"
            ) from error

    def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        self.emit(EventKind.PHASE, "old_log_prob")
        batch = super()._compute_old_log_prob(batch, metrics)
        if not (self.config.algorithm.get("rollout_correction") or {}).get("bypass_mode"):
            add_trainer_log_probs(self._advantages, batch)
        return batch

    def _compute_values(self, batch: Any, metrics: dict[str, Any]) -> Any:
        self.emit(EventKind.PHASE, "values")
        return super()._compute_values(batch, metrics)

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        rejects = (self.config.algorithm.get("rollout_correction") or {}).get("rollout_rs") is not None
        with self._estimator.reading(batch, rejects=rejects):
            batch = super()._compute_advantage(batch, metrics)
        batch = with_row_weights(batch, self.config.actor_rollout_ref.actor.loss_agg_mode)
        add_advantages(
            self._advantages, batch, critic=self.use_critic, kl_in_reward=self.config.algorithm.use_kl_in_reward
        )
        if not self.updates_left:
            write_advantages(self.plan.run_dir, self.global_steps, self._advantages)
        return batch

    def _update_critic(self, batch: Any, metrics: dict[str, Any]) -> Any:
        self.update_begins()
        self.emit(EventKind.PHASE, "update_critic")
        with _widened(self.config.critic, self._widening):
            return super()._update_critic(batch, metrics)

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        self.update_begins()
        self.emit(EventKind.PHASE, "update_actor")
        with _widened(self.config.actor_rollout_ref.actor, self._widening):
            return super()._update_actor(batch, metrics)

    def on_step_end(self) -> None:
        """Save a checkpoint if one is due, and send the new weights to the rollout servers.

        In this order: servers on the same GPUs sleep until they get weights, and writing shards needs memory there.
        """
        if self.saving.every and (self.stop_asked or self._is_last or self._is_due):
            self._begin_checkpoint()
        self.emit(EventKind.PHASE, "sync_weights")
        self.sync_weights(super().on_step_end, self.global_steps)

    @property
    def saves_late(self) -> bool:
        """Whether a run that fails saves the state after its last good step."""
        return bool(self.saving.every)

    @property
    def groups_per_step(self) -> int:
        """Groups that a step trains on."""
        return int(self.config.data.train_batch_size)

    @property
    def replaces_groups(self) -> bool:
        """Whether groups may be replaced: with an asynchronous schedule verl does so by itself, but without a limit."""
        return self.carries or self.plan.rollout.failures.drops or self.plan.filtered_group_size > 0

    @property
    def updates_left(self) -> int:
        """How many more updates the current step makes; only `separate_async` makes several."""
        return self.parameter_sync_step - 1 - self.local_trigger_step

    def _evaluate(self) -> dict[str, Any]:
        """Evaluate if it is due, with the servers' new weights; save a checkpoint if it is the best so far."""
        if not self.evaluations.is_due(self.global_steps, last=self._is_last):
            return {}
        evaluation = self.evaluations.make(self.global_steps, self.agent_loop_manager)
        if self.saving.every and self._pending is None and self.evaluations.is_best(evaluation):
            self._begin_checkpoint()
        return evaluation

    def _compute_metrics(
        self, batch: Any, metrics: dict[str, Any], timing_raw: Any, global_steps: int, epoch: int
    ) -> None:
        evaluation = self._evaluate()
        super()._compute_metrics(batch, metrics, timing_raw, global_steps, epoch)
        self._finish_step(global_steps, metrics, evaluation)

    def _finish_step(self, global_steps: int, metrics: dict[str, Any], evaluation: dict[str, Any]) -> None:
        """Record the step, then its checkpoint; called last in a step."""
        epoch = self.epochs.of(global_steps)
        record = step_record(global_steps, epoch, metrics, self.episodes) | as_step_metrics(evaluation)
        record |= self.train_dataset.metrics()
        if self.balance is not None:
            self._emit_ledger(self.balance, record)
        self.emit(EventKind.STEP, record)
        self.step_done()
        if evaluation:
            self.evaluations.report(evaluation)
        for warning in self.monitor.step(record, self.episodes):
            self.emit(EventKind.WARNING, warning.content())
        if self._pending is not None:
            # Only after the step is recorded: the run folder has every step up to a checkpoint.
            saved = self._commit(self._pending)
            self.evaluations.saved(evaluation)
            self._add_past_model(saved)
            prune(saved.parent, self.saving.keep_last_n, global_steps)

    def _emit_ledger(self, balance: StepLedger, record: dict[str, Any] | None = None) -> None:
        saving = None if self._pending is None else self._pending.path
        self.emit(EventKind.LEDGER, self._chain.sign(balance.as_dict(), record, saving))


@contextmanager
def _widened(part: Any, factor: int) -> Generator[None]:
    """Multiply the size of verl's mini-batches for this part."""
    usual = part.ppo_mini_batch_size
    part.ppo_mini_batch_size = usual * factor
    try:
        yield
    finally:
        part.ppo_mini_batch_size = usual
