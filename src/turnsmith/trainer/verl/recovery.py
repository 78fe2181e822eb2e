"""The state of a run while it trains: its checkpoints, its lost processes, and the last good state when it fails."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from verl.trainer.ppo.v1 import trainer_base

from turnsmith.records.checkpoints import PendingCheckpoint
from turnsmith.records.run_state import LAST_SAVE, EventKind
from turnsmith.trainer.checkpoints.contents import CheckpointPolicy, add_past_model, complete, drop_later_models
from turnsmith.trainer.dataset import Epochs
from turnsmith.trainer.verl.lost_and_joined_servers import SERVER_LOST
from turnsmith.trainer.verl.ranks import our_workers

_LOOK_SECONDS = 1.0
_SYNC_SECONDS = 300.0
_SAVE_SECONDS = 600.0


class StopAsked(Exception):
    """Ends the training loop, because the run was asked to stop and can stop now."""


class RecoveringTrainer(trainer_base.PPOTrainer):
    """The part of a trainer that saves and loads, replaces lost processes, and knows the last state that can be saved.

    A checkpoint is written at the end of a step, and gets its name once the step is recorded: the run folder has every
    step up to a checkpoint.
    """

    emit: Callable[[EventKind, Any], None]
    saving: CheckpointPolicy
    saves_late: bool
    """Whether a run that fails saves the state after its last good step."""
    agent_loop_manager: Any  # an EpisodeWorkers: the interface of verl's manager, but not its base class
    stop_asked = False
    """Set it to stop the run as soon as the state after a whole step is saved or can be saved."""
    epochs = Epochs()
    """The epochs of the current `fit`."""
    pool: Path | None = None
    """The folder of this run's past models, if they play; see `Players`."""
    _pending: PendingCheckpoint | None = None
    """The checkpoint that was written in this step."""
    _checked_at = 0.0
    _saved_at = time.monotonic()  # at first when this was imported, which is when the run began
    _asked: Sequence[Any] = ()
    _safe: tuple[int, dict[str, Any]] | None = None
    _version = 0
    _updating = False

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        self.role_worker_mapping = our_workers(self.role_worker_mapping)

    @property
    def servers(self) -> list[Any]:
        """Handles of the rollout servers."""
        return self.llm_server_manager.server_handles

    def joined_servers(self) -> list[Any]:
        """Handles of rollout servers on nodes that have joined since the last call; they have no weights yet."""
        return []

    def send_weights(self, version: int) -> None:
        """Send the weights to all rollout servers, as those of `version`."""
        manager: Any = self.checkpoint_manager
        manager.update_weights(version)  # verl's decorator waits for it outside an event loop

    def check_processes(self) -> None:
        """Replace lost workers, and send weights to restarted and new servers; called while the trainer waits."""
        self._stop_if_asked()
        if time.monotonic() - self._checked_at < _LOOK_SECONDS:
            return
        self._checked_at = time.monotonic()
        self.agent_loop_manager.replace_lost()
        if self._is_restarted(0):
            self._send_again()
        if joined := self.joined_servers():
            self._send_again()  # before their first requests, because they have the initial weights
            self.agent_loop_manager.add_servers(joined)

    def _is_restarted(self, seconds: float) -> bool:
        """Whether a server answers within `seconds` that it was restarted and waits for weights."""
        if not self._asked:
            self._asked = [server.lacks_weights.remote() for server in self.servers if hasattr(server, "lacks_weights")]
        count = len(self._asked)
        done, self._asked = ray.wait([*self._asked], num_returns=count, timeout=seconds) if count else ([], [])
        return any(map(_answer, done))

    def _send_again(self) -> None:
        self.sync_weights(lambda: self.send_weights(self._version), self._version)

    def sync_weights(self, send: Callable[[], Any], version: int) -> None:
        """Send the weights to the rollout servers, and again if one dies during that."""
        self._version = version
        self._asked = []
        if self._is_restarted(_LOOK_SECONDS):  # a forked server may have restarted unnoticed
            self.emit(EventKind.WARNING, "A rollout server died and was restarted; sending it the current weights.")
        until = time.monotonic() + _SYNC_SECONDS
        while True:
            try:
                send()
                return
            except RayError as error:
                if not _is_lost_server(error) or time.monotonic() > until:
                    raise
                self.emit(EventKind.WARNING, "A rollout server died while it received new weights; sending them again.")
                time.sleep(_LOOK_SECONDS)

    def step_done(self) -> None:
        """Record that model and records agree, so that the state can be saved until the next update begins."""
        self._updating = False
        # A copy, so that the curriculum's history of later groups does not change it.
        self._safe = (self.global_steps, copy.deepcopy(self.train_dataloader.state_dict()))

    def update_begins(self) -> None:
        """Record that the model is between two steps from now on."""
        self._stop_if_asked()
        self._safe, self._updating = None, True

    def _stop_if_asked(self) -> None:
        """Stop, unless a step is between its update and its record, or only the end of a step can be saved."""
        if not self.stop_asked or self._updating:
            return
        if self._safe is None or self.saves_late or not self.saving.every or self._is_saved(self._safe[0]):
            raise StopAsked

    def _is_saved(self, step: int) -> bool:
        return (Path(self.config.trainer.default_local_dir) / f"global_step_{step}").exists()

    def save_last(self) -> str:
        """Save the state after the last good step, if it still exists; return a sentence about it, or an empty text.

        Never raises, and waits for a limited time: saving may need what has failed.
        """
        if self._safe is None or not self.saves_late or self._is_saved(self._safe[0]):
            return ""
        (step, position), saved = self._safe, threading.Event()
        self.emit(EventKind.PHASE, LAST_SAVE)

        def write() -> None:
            # The data loader has moved on, but the groups of the failed step must be played again.
            self.global_steps, self.train_dataloader = step, _Position(position)
            try:
                self.save(Path(self.config.trainer.default_local_dir))
                saved.set()
            except Exception as error:  # noqa: BLE001  (the reason why the run stops is already reported)
                self.emit(EventKind.WARNING, f"The state after step {step} could not be saved: {_last_line(error)}.")

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        thread.join(_SAVE_SECONDS)
        return f"The state after step {step} was saved." if saved.is_set() else ""

    @property
    def _is_due(self) -> bool:
        """Whether a checkpoint is due by the clock or, where no time is set, by epochs."""
        if self.saving.minutes:
            return time.monotonic() - self._saved_at >= 60 * self.saving.minutes
        return self.epochs.end_with(self.global_steps, self.saving.every)

    @property
    def _is_last(self) -> bool:
        return self.global_steps >= self.total_training_steps

    def _begin_checkpoint(self) -> None:
        self.emit(EventKind.PHASE, "save_checkpoint")
        with trainer_base.marked_timer("save_checkpoint", self.timing_raw):
            self._pending = self._write(Path(self.config.trainer.default_local_dir))

    def state(self) -> dict[str, Any]:
        """State for a checkpoint that verl does not save, in plain values."""
        return {"step": self.global_steps, "epoch": self.epochs.of(self.global_steps)}

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
        self._saved_at = time.monotonic()
        pending.seal(lambda sentence: self.emit(EventKind.WARNING, sentence))
        return pending

    def on_every_rank(self, function: Callable[[int], Any]) -> list[Any]:
        """Call a function with the number of each rank, in that rank's process."""
        ranks: Any = self.actor_rollout_wg.workers
        # Ray passes the actor as the first argument.
        return ray.get(
            [worker.__ray_call__.remote(lambda _, rank: function(rank), rank) for rank, worker in enumerate(ranks)]
        )

    def _commit(self, pending: PendingCheckpoint) -> Path:
        self._pending = None
        saved = pending.commit()
        self.emit(EventKind.CHECKPOINT, str(saved))
        return saved

    def _add_past_model(self, checkpoint: Path) -> None:
        """Add the model to the past models that it plays, after each checkpoint that a repeated run also has."""
        if self.pool is not None and self.epochs.end_with(self.global_steps, self.saving.every):
            add_past_model(self.pool, checkpoint, self.global_steps)

    def load(self, checkpoint: Path) -> None:
        """Load the checkpoint in this folder and send its weights to the rollout servers."""
        self.config.trainer.resume_mode = "resume_path"
        self.config.trainer.resume_from_path = str(checkpoint)
        manager: Any = self.checkpoint_manager
        manager.sleep_replicas()  # as verl does: the checkpoint needs the GPU memory. The weights below wake them up.
        self._load_checkpoint()
        if self.pool is not None:
            drop_later_models(self.pool, self.global_steps)
            self._add_past_model(checkpoint)  # the run may have been killed before this
        self.train_dataloader_it = None  # else the current iterator would continue
        self.sync_weights(lambda: self.send_weights(self.global_steps), self.global_steps)


class _Position:
    """Stands in for the data loader, with an earlier state."""

    def __init__(self, position: dict[str, Any]) -> None:
        self._position = position

    def state_dict(self) -> dict[str, Any]:
        return self._position


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def _answer(reference: Any) -> bool:
    try:
        return bool(ray.get(reference))
    except SERVER_LOST:  # or still starting
        return False


def _is_lost_server(error: RayError) -> bool:
    """Whether only the server that receives weights is lost, and not the rank that sends them."""
    return isinstance(error, RayTaskError) and isinstance(error.cause, SERVER_LOST)
