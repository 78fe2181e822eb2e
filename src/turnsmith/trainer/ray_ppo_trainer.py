"""`RayPPOTrainer`, in the user's process: builds verl's config, starts Ray, and follows verl's training."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from turnsmith.config import ConfigStore
from turnsmith.errors import ConfigError, TrainingFailure, UpdateOutOfMemory
from turnsmith.inference.models import BUILT_MODELS, cache_folder
from turnsmith.records.checkpoints import read_state
from turnsmith.records.files import using
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.run_lock import RunLock
from turnsmith.records.run_state import EventKind, this_process
from turnsmith.records.run_warnings import RunWarning
from turnsmith.records.signed_ledger import signed_end
from turnsmith.rollout.spec import EpisodeParts
from turnsmith.tools.parsing import ActionParser
from turnsmith.tools.registry import ToolRegistry
from turnsmith.trainer.checkpoints.contents import check_fit, find_checkpoint
from turnsmith.trainer.config.check import check, check_horizon, run_header, verl_config
from turnsmith.trainer.config.layout import half_micro_batch
from turnsmith.trainer.dataset import CustomEnvironmentDataset, Epochs, Tasks, steps_in_epoch
from turnsmith.trainer.display import ProgressView
from turnsmith.trainer.driver.ending import ignore_preemption, preemptible, record_end, to_training_failure
from turnsmith.trainer.driver.gpu_preflight import check_gpus
from turnsmith.trainer.driver.preflight import check_machine
from turnsmith.trainer.resume import Recipe, StoppedRun, reopen
from turnsmith.trainer.run_parts import (
    EpisodePlan,
    RunParts,
    TrainerCallback,
    check_tokenizer,
    claim_new_folder,
    one_of,
    write_settings,
    write_starts,
)
from turnsmith.trainer.session import Session, train_until


class RayPPOTrainer:
    """Trains a language model in the user's environment, with verl on Ray.

    Args:
        config: All settings; every one has a default.
        environment: The environment's class, `"module:Name"`, an instance (which stands for its class and config), or
            an `EnvironmentMix` of several; None: that of the `CustomEnvironmentDataset`.
        reward_fn: `reward_fn(trajectory)` or `reward_fn(trajectory, environment)`, sync or async: the reward of a whole
            episode; None: the rewards that the environment's `step` returns, each on its own turn.
        dataset: A `CustomEnvironmentDataset`, or tasks, passed to `reset(task=...)` in turn; None: only seeds differ.
        tools: Tools to offer besides the environment's own `@tool` methods.
        validation: The held-out set for `evaluation.every`: another environment, or tasks as for `dataset` (a
            `CustomEnvironmentDataset` may name its own environment); None: the same environment, with seeds that
            training does not use.
        parser: Reads the model's tool calls; None: the parser that `inference.tool_format` names.
        callbacks: Called in this process after each step, evaluation and checkpoint.
        train_dataset: `dataset`, by verl's name for it.
        val_dataset: `validation`, by verl's name for it.
        tokenizer: The model's own, which is always used; another one is an error.
        multi_turn_engine: An error, which says what does the same.

    Example:
        >>> from turnsmith import ConfigStore, RayPPOTrainer
        >>> config = ConfigStore()
        >>> config.training.batch_size = 30
        >>> RayPPOTrainer(config, "turnsmith.env.examples:GuessNumber")
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: training.batch_size=30 is not a multiple of training.group_size=8: a batch is \
made of whole groups. Set batch_size to 24 or 32.
    """

    def __init__(
        self,
        config: ConfigStore,
        environment: Any = None,
        reward_fn: Callable[..., Any] | None = None,
        dataset: CustomEnvironmentDataset | Tasks | None = None,
        tools: ToolRegistry | None = None,
        validation: Any = None,
        parser: ActionParser | None = None,
        callbacks: Sequence[TrainerCallback] = (),
        *,
        train_dataset: CustomEnvironmentDataset | Tasks | None = None,
        val_dataset: Any = None,
        tokenizer: Any = None,
        multi_turn_engine: Any = None,
    ) -> None:
        if multi_turn_engine is not None:
            raise ConfigError(
                "multi_turn_engine is not taken: training plays episodes of several turns with an engine of its own, "
                "to which it sends new weights. Leave it out; inference.max_turns limits the turns, and the "
                "environment's get_prompt_prefix is the system prompt."
            )
        dataset = one_of(dataset=dataset, train_dataset=train_dataset)
        validation = one_of(validation=validation, val_dataset=val_dataset)
        check(config)
        check_tokenizer(tokenizer, config)
        episodes = EpisodeParts(reward_fn=reward_fn, tools=tools, parser=parser)
        self.config = config
        self.parts = RunParts.of(config, episodes, environment, dataset, validation, callbacks)
        """What was passed."""
        self.run: RunFolder | None = None
        """The run folder, once training has started."""
        self._lock: RunLock | None = None  # from before the folder is rewound until the run's processes have ended
        self._session: Session | None = None  # while the run has processes
        self._view = ProgressView()
        if sentence := self.parts.validation.warning(config):
            self._view.note(sentence)
        if config.verl_unchecked:
            self._view.note(f"Nothing checks {', '.join(config.verl_unchecked)} (verl_unchecked).")
        self._steps_made = 0
        self._epochs = Epochs()
        self._stopped: StoppedRun | None = None  # the run to resume, until it has been started
        self._is_training = False
        self._is_halved = False  # whether micro-batches were halved after a GPU was out of memory

    @classmethod
    def resume(
        cls,
        run_folder: str | Path,
        environment: Any = None,
        reward_fn: Callable[..., Any] | None = None,
        tools: ToolRegistry | None = None,
        curriculum: Callable[..., Any] | None = None,
        *,
        validation: Any = None,
        parser: ActionParser | None = None,
        callbacks: Sequence[TrainerCallback] = (),
        overrides: Sequence[str] = (),
        trust: bool = False,
    ) -> RayPPOTrainer:
        """A trainer that resumes a stopped run, in the same folder, from its newest good checkpoint.

        Records of later steps are removed from the folder now. `fit()` then trains for the remaining steps.

        Args:
            run_folder: The run's folder.
            environment: Like `reward_fn`, `tools`, `curriculum`, `validation` and `parser`: only needed if it cannot be
                imported by its name.
            callbacks: Called in this process, as for a new run.
            overrides: Settings to change, as in `["training.num_epochs=4"]`.
            trust: Whether to load what this user's turnsmith did not write: doing so runs code in it.

        Example:
            >>> RayPPOTrainer.resume("runs/gone")
            Traceback (most recent call last):
            turnsmith.errors.RecordError: There is no run folder runs/gone.
        """
        given = {"environment": environment, "curriculum": curriculum, "validation": validation}
        given |= EpisodeParts(reward_fn=reward_fn, tools=tools, parser=parser).parts()
        stopped = reopen(run_folder, given, overrides, trust=trust)
        try:
            trainer = cls(stopped.config, **stopped.parts, callbacks=callbacks)
        except BaseException:
            stopped.lock.release()
            raise
        trainer.run, trainer._stopped, trainer._steps_made = stopped.run, stopped, stopped.step
        trainer._lock = stopped.lock
        trainer._epochs = stopped.recipe.epochs
        for sentence in [*stopped.warnings, f"Resuming {stopped.run.path} after step {stopped.step}."]:
            trainer._view.note(sentence)
        return trainer

    @property
    def metrics_history(self) -> list[dict[str, Any]]:
        """The metrics so far, one row for each optimizer step, with its `step` and `epoch`; docs/run-folder.md has all.

        Read from the run folder: a long run has too many for memory.
        """
        return self.run.read_metrics() if self.run else []

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """The metrics of each evaluation so far, the one before training included, read from the run folder."""
        return self.run.read_evaluations() if self.run else []

    @preemptible()
    def fit(self, num_epochs: int | None = None, num_iters_per_epoch: int | None = None) -> list[dict[str, Any]]:
        """Train for `num_epochs` times `num_iters_per_epoch` optimizer steps; return the metrics of all steps.

        Ctrl-C stops every process of the run and leaves its folder readable. SIGTERM and SIGUSR1, with which schedulers
        announce that they take the machine away, also save a checkpoint, and raise Preempted. A second call continues
        from the first with the next epoch (not with `training.lr_schedule=cosine`, which ends with the first). In a
        resumed run, a call without arguments trains for the remaining steps.
        """
        self._refuse_while_training("fit")
        self._refuse_after_cleanup()
        steps, epochs = self._steps_to_make(num_epochs, num_iters_per_epoch)
        if steps <= 0:  # only in a resumed run
            self._view.note(f"All {self._steps_made} steps of {self._folder().path} are done.")
            return self.metrics_history
        if self._session is not None and self._session.runner is not None:
            last = self._watch(self._session.runner.step.remote()) + steps
            check_horizon(self.config.training, last, self._session.horizon)
        began, self._epochs = time.monotonic(), epochs
        try:
            header = run_header(self.config, self.parts.environment.name)
            self._view.start(self._steps_made + steps, header, self._steps_made)
            self._start(self._steps_made + steps)
            last = self._watch(self._runner.step.remote()) + steps
            with using(self._folder().path):
                Recipe.of(self.config, self.parts, last, epochs).write(self._folder().path)
                self._folder().append_event(EventKind.TRAINING, steps=last, **this_process())
            self._is_training = True
            grace = self.config.checkpoint.grace_seconds
            is_whole = train_until(last, epochs, self._runner, self._watch, grace, self._view.note)
            self._is_training = False
            end = last if is_whole else self._steps_made
            with using(self._folder().path):
                self._folder().append_event(EventKind.FINISHED, step=end, **signed_end(self._folder(), end))
            for callback in self.parts.callbacks:
                callback.on_train_end(self)
        except BaseException as error:
            self._is_training = False
            if isinstance(error, UpdateOutOfMemory) and self._rewind_with_half_micro_batches():
                return self.fit()
            ignore_preemption()
            self._view.finish(record_end(error, self.run))
            self.cleanup()
            raise
        self._view.finish(f"{steps - (last - end)} steps in {time.monotonic() - began:.0f} s, in {self._folder().path}")
        if not is_whole:
            self.cleanup()  # the step that was under way is gone; only `resume` begins it again
        return self.metrics_history

    def _rewind_with_half_micro_batches(self) -> bool:
        """Rewind to the last checkpoint, with smaller micro-batches; False if that was done before, or can't be."""
        half = None if self._is_halved else half_micro_batch(self.config)
        throws_steps_away = self._steps_made > 0 and not self.config.checkpoint.save_interval
        if half is None or throws_steps_away:
            return False
        failed = self._steps_made + 1
        self.cleanup()
        dataset = self.parts.dataset
        given = {**self.parts.parts(), "environment": self.parts.environment, "validation": self.parts.validation}
        self._stopped = reopen(self._folder().path, given | {"curriculum": dataset.curriculum}, [half])
        self.config, self._lock, self._is_halved = self._stopped.config, self._stopped.lock, True
        self._steps_made, self._epochs = self._stopped.step, self._stopped.recipe.epochs
        sentence = (
            f"A GPU was out of memory in step {failed}. The run goes on after step {self._steps_made} with {half}; it "
            "will stop if that is not enough."
        )
        self._folder().append_event(EventKind.WARNING, content=sentence)
        self._show(EventKind.WARNING, sentence)
        return True

    def check(self, say: Callable[[str], None]) -> None:
        """Make the checks of `training.check`, which `fit` makes before it starts Ray, and say what they find.

        No model is needed: openings are measured in tokens if its tokenizer is on this machine.

        Example:
            >>> RayPPOTrainer(ConfigStore(), "turnsmith.env.examples:GuessNumber").check(lambda line: None)

        Raises:
            EnvironmentFailure: No episode of a run could work.
        """
        from turnsmith.trainer.quick_checks import run_quick_checks

        model = self.config.model.local_path or self.config.model.model_name
        folder = str(cache_folder() / BUILT_MODELS[model]) if model in BUILT_MODELS else model
        for warning in run_quick_checks(self.config, self.parts, folder, say).warnings:
            say(str(warning))

    def stop(self) -> None:
        """Have `fit` return after the last whole step, which is saved unless `checkpoint.save_interval` is 0.

        For callbacks. `turnsmith resume` trains for the steps that are left.

        Example:
            >>> from turnsmith import ConfigStore, RayPPOTrainer
            >>> RayPPOTrainer(ConfigStore(), "turnsmith.env.examples:GuessNumber").stop()
            Traceback (most recent call last):
            turnsmith.errors.TrainingFailure: The run is not training: call stop() from a callback.
        """
        if not self._is_training:
            raise TrainingFailure("The run is not training: call stop() from a callback.")
        self._runner.stop_soon.remote()

    def save_checkpoint(self, path: str | Path) -> Path:
        """Save model, optimizer and data position under `path`; return the checkpoint's own folder."""
        self._refuse_while_training("save_checkpoint")
        self._refuse_after_cleanup()
        if self._runner is None:
            raise TrainingFailure("There is nothing to save yet: call fit() or load_checkpoint() first.")
        return Path(self._watch(self._runner.save.remote(str(Path(path).absolute()))))

    def load_checkpoint(self, path: str | Path, trust: bool = False) -> int:
        """Load what `save_checkpoint(path)` saved (the newest good one, if several); return its step.

        Args:
            path: A checkpoint's own folder, a folder of checkpoints, or a run folder.
            trust: Whether to load what this user's turnsmith did not write: doing so runs code in its files.
        """
        self._refuse_while_training("load_checkpoint")
        checkpoint = find_checkpoint(Path(path), trust=trust, warn=self._view.note)
        check_fit(checkpoint, self.config, self._view.note)
        epoch_steps = steps_in_epoch(self.config, self.parts.dataset)
        epoch = read_state(checkpoint.path).get("epoch", (checkpoint.step - 1) // epoch_steps)
        self._epochs = Epochs(epoch_steps, checkpoint.step, int(epoch) + 1)
        self._start(0, checkpoint.step + self.config.training.num_epochs * epoch_steps)
        step = self._steps_made = int(self._watch(self._runner.load.remote(str(checkpoint.path))))
        with using(self._folder().path):
            self._folder().append_event(EventKind.LOADED, step=step, content=str(checkpoint.path))
        return step

    def cleanup(self) -> None:
        """Stop Ray and every process of the run, and free their memory. Safe to call twice.

        The run is then over for this trainer; `resume` goes on with it.
        """
        if self._session is not None:
            self._session.close()
        if self._lock is not None:
            self._lock.release()
        self._session = self._lock = None

    @property
    def _runner(self) -> Any:
        """The task runner, while it runs."""
        return None if self._session is None else self._session.runner

    def _steps_to_make(self, epochs: int | None, epoch_steps: int | None) -> tuple[int, Epochs]:
        """Number of steps, and their epochs."""
        if self._stopped is not None and epochs is None and epoch_steps is None:
            return self._stopped.recipe.steps - self._stopped.step, self._epochs
        epoch_steps = epoch_steps or steps_in_epoch(self.config, self.parts.dataset)
        steps = (epochs or self.config.training.num_epochs) * epoch_steps
        return steps, self._epochs.next(epoch_steps, self._steps_made)

    def _start(self, last_step: int, horizon: int | None = None) -> None:
        """Start every process, if there is none yet; `horizon`: the learning rate's last step, if not `last_step`."""
        if self._runner is not None:
            return
        from turnsmith.inference.model_check import check_hub
        from turnsmith.inference.models import resolve
        from turnsmith.trainer.verl.trackers import tracker_variables

        config = self.config
        check_machine(config)  # before anything that a machine without Linux cannot install is imported
        from omegaconf import OmegaConf

        self._view.phase("resolving model")
        # Other machines do not see the cache of this one.
        shared = Path(config.checkpoint.output_dir) / ".models" if config.ray.address else None
        model_path = resolve(config.model.model_name, config.model.local_path, shared)
        check_hub(model_path)
        steps = (horizon or last_step) if self._stopped is None else None
        check_gpus(config, model_path, self._view.note, steps)
        if self._stopped is None:
            self.run, self._lock = claim_new_folder(config, self.parts.environment.name)
        else:
            self._refuse_after_cleanup()
            self.run, self._lock = self._stopped.run, self._stopped.lock
        run_dir = str(self.run.path)
        self._session = Session(config, self.run, horizon or last_step)
        theirs = verl_config(config, model_path=model_path, run_dir=run_dir, steps=self._session.horizon)
        with using(self.run.path):
            write_settings(config, self.run)
            self.run.write_verl_config(OmegaConf.to_yaml(theirs))
            write_starts(config, self.parts, self.run, is_new=self._stopped is None)
            Recipe.of(config, self.parts, last_step, self._epochs).write(self.run.path)
            self.run.append_event(EventKind.STARTING, **this_process())
        if config.training.check and self._stopped is None:
            from turnsmith.trainer.quick_checks import check_before_start

            self._view.phase("checking")
            self.config, self.parts = check_before_start(config, self.parts, model_path, self.run, self._view.note)
        runner = self._session.start(model_path, self._view, steps)
        self._watch(
            runner.start.remote(
                theirs,
                EpisodePlan.of(self.config, self.parts, self._lock, model_path),
                self.parts.validation.schedule(config),
                self._epochs,
                tracker_variables(run_dir),
            )
        )
        if self._stopped is not None and self._stopped.checkpoint is not None:
            self._watch(runner.load.remote(str(self._stopped.checkpoint.path)))
        self._stopped = None

    def _watch(self, reference: Any, grace: float | None = None) -> Any:
        """Show progress until a call to the task runner returns; raise its error as one of ours."""
        from ray.exceptions import RayError

        try:
            assert self._session is not None
            return self._session.wait(reference, self._show, grace)
        except RayError as error:
            watchdog = None if self._session is None else self._session.watchdog
            phase = "" if watchdog is None else watchdog.phase
            raise to_training_failure(error, self._folder(), self._steps_made, phase) from None

    def _show(self, kind: EventKind, content: Any) -> None:
        if kind == EventKind.PHASE:
            self._view.phase(content)
        elif kind == EventKind.STEP:
            self._steps_made = content["step"]
            self._view.step(content)
            for callback in self.parts.callbacks:
                callback.on_step_end(self, content)
        elif kind == EventKind.EVALUATION:
            self._view.evaluation(content)
            for callback in self.parts.callbacks:
                callback.on_evaluate(self, content)
        elif kind == EventKind.CHECKPOINT:
            self._view.note(f"saved {content}")
            for callback in self.parts.callbacks:
                callback.on_save(self, Path(content))
        elif kind == EventKind.WARNING:
            self._view.note(content if isinstance(content, str) else str(RunWarning.of(content)))

    def _refuse_while_training(self, method: str) -> None:
        if self._is_training:
            raise TrainingFailure(f"A callback cannot call {method}() while the run trains: do it in on_train_end.")

    def _refuse_after_cleanup(self) -> None:
        if self.run is not None and self._lock is None and (self._steps_made or self._stopped is not None):
            raise TrainingFailure(
                f"This trainer's run ended after step {self._steps_made}, with cleanup() or an error: "
                f"RayPPOTrainer.resume({str(self.run.path)!r}) goes on with it, a new RayPPOTrainer begins another."
            )

    def _folder(self) -> RunFolder:
        if self.run is None:
            raise TrainingFailure("The run has no folder yet: call fit() first.")
        return self.run
