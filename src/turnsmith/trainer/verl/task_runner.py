"""The Ray actor that runs verl's trainer; the user's process talks only to this one."""

from __future__ import annotations

import gc
import queue
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnsmith.records.compaction import EpisodeCompactor
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.run_lock import RunLock, join_run
from turnsmith.records.run_state import EventKind
from turnsmith.records.stacks import enable_stack_dump
from turnsmith.trainer.dataset import Epochs

if TYPE_CHECKING:
    from turnsmith.trainer.run_parts import EpisodePlan
    from turnsmith.trainer.validation import EvaluationSchedule


class TaskRunner:
    """Builds verl's trainer, trains, and reports events."""

    _folder: RunFolder
    _compactor: EpisodeCompactor

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._lock: RunLock | None = None  # held for the lifetime of this process
        self._trainer: Any = None
        self._trackers: Any = None
        self._workers: Any = None
        self._moves = 0
        enable_stack_dump("task runner")

    def next_events(self, timeout: float) -> list[tuple[str, Any]]:
        """The events since the last call; waits up to `timeout` seconds for the first one."""
        events: list[tuple[str, Any]] = []
        try:
            events.append(self._events.get(timeout=timeout))
            while True:
                events.append(self._events.get_nowait())
        except queue.Empty:
            return events

    def start(
        self,
        config: Any,
        plan: EpisodePlan,
        evaluating: EvaluationSchedule | None,
        epochs: Epochs,
        tracker_variables: dict[str, str],
    ) -> None:
        """Start every process of the run and load the model; `config` is verl's, `plan` has ours."""
        self._folder = RunFolder.open(plan.run_dir)
        self._compactor = EpisodeCompactor(
            self._folder.episodes_dir, lambda sentence: self._emit(EventKind.WARNING, sentence)
        )
        self._lock = join_run(self._folder.path, plan.lock_token)
        self._emit(EventKind.PHASE, "starting workers")
        config.transfer_queue.enable = True
        queue_ready = ThreadPoolExecutor(1).submit(_start_transfer_queue, config.transfer_queue)
        from omegaconf import OmegaConf
        from verl.trainer.ppo.utils import need_critic, need_reference_policy
        from verl.utils.config import validate_config

        from turnsmith.rollout.ledger import Ledger, unsettled_episodes
        from turnsmith.trainer.verl import plugin
        from turnsmith.trainer.verl.agent_loop import local_worker, start_actor
        from turnsmith.trainer.verl.schedules import trainer_class
        from turnsmith.trainer.verl.trackers import Trackers
        from turnsmith.trainer.verl.workers import EpisodeWorkers

        plugin.check_loaded()
        self._trackers = Trackers(config, plan.config, plan.run_dir, tracker_variables, self._warn)
        validate_config(
            config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config)
        )
        OmegaConf.resolve(config)
        make = trainer_class(config.trainer.v1.trainer_mode)
        self._trainer = make(config, self._emit, plan, evaluating)
        self._trainer.epochs = epochs
        self._emit(EventKind.PHASE, "loading model")
        self._trainer.init()
        queue_ready.result()
        trainer = self._trainer
        self._workers = self._trainer.agent_loop_manager = EpisodeWorkers(
            lambda place: (
                start_actor(place, plan, config, trainer.get_llm_client().of_worker(place, plan.num_actors))
                if plan.num_actors
                else local_worker(plan, config, trainer.get_llm_client())
            ),
            max(1, plan.num_actors),
            int(config.actor_rollout_ref.rollout.n),
            Ledger(unsettled_episodes(self._folder.read_ledger()) if make.carries else (), may_carry=make.carries),
            self._warn,
        )
        self._workers.while_waiting = self._trainer.check_processes
        # Imports create half a million objects. Without them, Python would look for garbage often, and find little.
        gc.freeze()
        self._trainer.on_every_rank(lambda rank: gc.freeze())
        self._emit(EventKind.PHASE, "ready")

    def train_until(self, step: int, epochs: Epochs | None = None) -> bool:
        """Train up to and including optimizer step `step`; if that fails, save the state after the last good step.

        Returns:
            Whether that step was reached; not if `stop_soon` was called meanwhile.
        """
        from turnsmith.trainer.verl.recovery import StopAsked

        self._trainer.epochs = epochs or self._trainer.epochs
        try:
            self._trainer.continue_until(step)
        except Exception as error:
            saved = self._trainer.save_last()
            if saved:
                self._warn(saved)
            if not isinstance(error, StopAsked):
                raise
            return False
        return True

    def stop_soon(self) -> None:
        """Have `train_until` stop as soon as the state after a whole step can be saved, and save it."""
        self._trainer.stop_asked = True

    def pulse(self) -> tuple[int, str]:
        """A counter of progress, and what the run is doing; the watchdog in the user's process asks for it."""
        moves, standing = self._workers.pulse() if self._workers is not None else (0, "its processes are starting")
        return self._moves + moves, standing

    def step(self) -> int:
        """The last optimizer step."""
        return self._trainer.global_steps

    def save(self, folder: str) -> str:
        """Save a checkpoint under `folder`; return where."""
        return str(self._trainer.save(Path(folder)))

    def load(self, checkpoint: str) -> int:
        """Load a checkpoint; return its step."""
        self._trainer.load(Path(checkpoint))
        return self._trainer.global_steps

    def finish_trackers(self) -> None:
        """Write and send what trackers still buffer."""
        if self._trackers is not None:
            self._trackers.finish()

    def _warn(self, sentence: str) -> None:
        self._emit(EventKind.WARNING, sentence)

    def _emit(self, kind: EventKind, content: Any) -> None:
        self._moves += 1
        self._folder.record(kind, content)
        if kind == EventKind.STEP:
            self._compactor.step_done(content["step"])
            self._trackers.log(content)
        elif kind == EventKind.EVALUATION and content["step"] == 0:  # others are part of their step's record
            from turnsmith.trainer.validation import as_step_metrics

            self._trackers.log({"step": 0, **as_step_metrics(content)})
        self._events.put((kind, content))


def _start_transfer_queue(config: Any) -> None:
    import transfer_queue

    from turnsmith.trainer.verl.transport import protect_queue

    protect_queue()  # before its processes start; verl, whose plugin does so too, may not have been imported yet
    transfer_queue.init(config)
