"""Recovery from faults during training: lost processes, a last checkpoint."""

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

from turnsmith.records.run_state import LAST_SAVE
from turnsmith.trainer.checkpoints.contents import CheckpointPolicy
from turnsmith.trainer.verl.lost_servers import SERVER_LOST

_LOOK_SECONDS = 1.0
_SYNC_SECONDS = 300.0
_SAVE_SECONDS = 600.0


class StopAsked(Exception):
    """Ends the training loop because the run was asked to stop, and can."""


class RecoveringTrainer(trainer_base.PPOTrainer):
    """The part of a trainer that replaces lost processes, and knows the last state that a checkpoint can be made of."""

    emit: Callable[[str, Any], None]
    saving: CheckpointPolicy
    saves_late: bool
    """Whether a run that fails saves the state after its last good step."""
    agent_loop_manager: Any  # an EpisodeWorkers: the interface of verl's manager, but not its base class
    stop_asked = False
    """Set it to stop the run as soon as the state after a whole step is, or can be, saved."""
    _looked = 0.0
    _asked: Sequence[Any] = ()
    _safe: tuple[int, dict[str, Any]] | None = None
    _version = 0
    _updating = False

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
        manager.update_weights(version)  # verl decorates it: called outside an event loop, it has run when it returns

    def save(self, folder: Path) -> Path:
        """Save model, optimizer and data position under `folder`; return the checkpoint's own folder."""
        raise NotImplementedError

    def look_after_processes(self) -> None:
        """Replace lost workers, and send weights to restarted and new servers; called while the trainer waits."""
        self._stop_if_asked()
        if time.monotonic() - self._looked < _LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        self.agent_loop_manager.replace_lost()
        if self._is_restarted(0):
            self._send_again()
        if joined := self.joined_servers():
            self._send_again()  # before they get requests: they have the initial weights
            self.agent_loop_manager.add_servers(joined)

    def _is_restarted(self, seconds: float) -> bool:
        """Whether a server says, within so many seconds, that it was restarted and waits for weights."""
        if not self._asked:
            self._asked = [server.lacks_weights.remote() for server in self.servers if hasattr(server, "lacks_weights")]
        count = len(self._asked)
        done, self._asked = ray.wait([*self._asked], num_returns=count, timeout=seconds) if count else ([], [])
        return any(map(_answer, done))

    def _send_again(self) -> None:
        self.sync_weights(lambda: self.send_weights(self._version), self._version)

    def sync_weights(self, send: Callable[[], Any], version: int) -> None:
        """Send the weights to the rollout servers, again if one dies meanwhile."""
        self._version = version
        self._asked = []
        if self._is_restarted(_LOOK_SECONDS):  # a forked server may be back before anybody has looked
            self.emit("warning", "A rollout server died and was restarted; sending it the current weights.")
        until = time.monotonic() + _SYNC_SECONDS
        while True:
            try:
                send()
                return
            except RayError as error:
                if not _is_lost_server(error) or time.monotonic() > until:
                    raise
                self.emit("warning", "A rollout server died while it received new weights; sending them again.")
                time.sleep(_LOOK_SECONDS)

    def step_done(self) -> None:
        """Note that model and records agree: a checkpoint can be made until the next update begins."""
        self._updating = False
        # A copy: the curriculum's history of later groups must not get into it.
        self._safe = (self.global_steps, copy.deepcopy(self.train_dataloader.state_dict()))

    def update_begins(self) -> None:
        """Note that the model is between two steps from now on."""
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
        """Save the state after the last good step, if it is still there; return a sentence about it, or nothing.

        Never raises, and does not wait for ever: what failed may be needed to save.
        """
        if self._safe is None or not self.saves_late or self._is_saved(self._safe[0]):
            return ""
        (step, position), saved = self._safe, threading.Event()
        self.emit("phase", LAST_SAVE)

        def write() -> None:
            # The data loader has moved on since: the groups of the failed step must be played again.
            self.global_steps, self.train_dataloader = step, _Position(position)
            try:
                self.save(Path(self.config.trainer.default_local_dir))
                saved.set()
            except Exception as error:  # noqa: BLE001  (the run stops for another reason, which is reported already)
                self.emit("warning", f"The state after step {step} could not be saved: {_last_line(error)}.")

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        thread.join(_SAVE_SECONDS)
        return f"The state after step {step} was saved." if saved.is_set() else ""


class _Position:
    """Replaces the data loader, and returns an earlier state of it."""

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
    """Whether the rank that sends weights is alive, and only the server it sent them to is gone."""
    return isinstance(error, RayTaskError) and isinstance(error.cause, SERVER_LOST)
