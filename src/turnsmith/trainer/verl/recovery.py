"""Recovery from faults during training: replaced groups, lost processes, a last checkpoint."""

from __future__ import annotations

import copy
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
import transfer_queue
from ray.exceptions import RayError, RayTaskError

from turnsmith.errors import TrainingFailure
from turnsmith.records.run_state import LAST_SAVE
from turnsmith.rollout.episode_groups import episode_name
from turnsmith.trainer.verl.lost_servers import SERVER_LOST
from turnsmith.trainer.verl.workers import PARTITION

_LOOK_SECONDS = 1.0
_AGAIN_SECONDS = 0.2
_SYNC_SECONDS = 300.0
_SAVE_SECONDS = 600.0
NOTHING_TO_TRAIN_ON = "no materializable trajectories"
"""The error of verl's synchronous replay buffer when every episode of a batch failed; the other raises none."""
_MOST_REPLACED = 8
"""Limit on replaced groups in a step, per group that it needs: more means that nothing works."""


def episode_names(batch: Any) -> list[str]:
    """The ids of the episodes in a batch of verl's, whose keys are `{uid}_{session}_{segment}`."""
    names = (key.rsplit("_", 2) for key in batch.keys)
    return [episode_name(uid, session) for uid, session, segment in names if segment == "0"]


def replace_groups(buffer: Any, batch_size: int, *, filters: bool = False) -> Callable[[], None]:
    """Make a replay buffer replace every group that was dropped or filtered, up to a limit.

    verl's synchronous buffer replaces only groups of which nothing is left; it keeps others and pads them silently. Its
    own filter plays two groups for each that it replaces, and discards what is left over.

    Args:
        buffer: verl's replay buffer.
        batch_size: Groups per step.
        filters: Whether groups with equal rewards are among those that are replaced.

    Returns:
        A function to call at the beginning of each step.
    """
    find, refill = buffer._terminal_eviction_reasons, buffer.refill_fn
    replaced = 0

    def reasons(global_steps: int, partition_id: str) -> tuple[set[str], set[str], set[str], Counter[Any]]:
        stale, filtered, _, counts = find(global_steps, partition_id)
        failed: set[str] = set() if partition_id == "val" else set(buffer.failure_keys[partition_id])
        return stale, filtered, failed, counts

    def replace(number: int) -> Any:
        nonlocal replaced
        replaced += number
        if replaced > _MOST_REPLACED * batch_size:
            raise TrainingFailure(
                f"{replaced} groups were replaced in one step, and it still has too few: {_why(filters)}"
            )
        return refill(number)

    def begin() -> None:
        nonlocal replaced
        replaced = 0

    buffer._terminal_eviction_reasons, buffer.refill_fn = reasons, replace
    return begin


def _why(filters: bool) -> str:
    if filters:
        return (
            "in nearly all of them the rewards were equal, so the tasks are too easy or too hard for the model. Use "
            "others, larger groups (training.group_size) or partial rewards, or leave out training.filter_groups."
        )
    return (
        "fix what fails, use mask instead of drop in `failures`, or raise training.max_staleness if they got too old."
    )


def keep_until_handed_over(
    buffer: Any, finish: Callable[[list[str]], bool], replace_lost: Callable[[], None], *, has_prompts: bool = False
) -> None:
    """Make a replay buffer hand out a batch only when the records of its episodes have arrived as well.

    A worker that dies in between has put its episodes into the queue, but their records are lost with it. Then the
    batch is put back, the worker's groups are replayed, and the batch is made of the same groups in the end.

    Args:
        buffer: verl's replay buffer.
        finish: Collects the records of the given groups; returns whether all of them arrived.
        replace_lost: Replaces lost workers, and sends the new ones their groups.
        has_prompts: Whether the queue also holds what each group starts from, which a checkpoint is resumed with.
    """
    sample, materialize = buffer.sample, buffer._materialize_batch
    chosen: list[str] = []
    prompts: dict[str, Any] = {}

    def remember(partition_id: str, selected_prompt_uids: list[str], partition_snapshot: dict[str, Any]) -> Any:
        chosen[:] = selected_prompt_uids
        if has_prompts and chosen:  # before it clears them
            prompts["fields"] = transfer_queue.kv_batch_get(keys=list(chosen), partition_id=partition_id)
        return materialize(partition_id, selected_prompt_uids, partition_snapshot)

    def sample_and_finish(global_steps: int, partition_id: str, batch_size: int) -> Any:
        while True:
            found = sample(global_steps=global_steps, partition_id=partition_id, batch_size=batch_size)
            if partition_id == PARTITION and not found[0].keys:
                raise RuntimeError(NOTHING_TO_TRAIN_ON)
            if partition_id != PARTITION or finish(chosen):
                return found
            begun = buffer.prompt_global_steps[partition_id]  # as it was when they were taken: they are that old
            tags = [{"is_prompt": True, "status": "finished", "global_steps": begun[uid]} for uid in chosen]
            transfer_queue.kv_batch_put(keys=list(chosen), partition_id=partition_id, tags=tags, **prompts)
            replace_lost()
            time.sleep(_AGAIN_SECONDS)  # the loss of a worker may be known here a moment later

    buffer._materialize_batch, buffer.sample = remember, sample_and_finish


class StopAsked(Exception):
    """Ends the training loop because the run was asked to stop, and can."""


class Recovery:
    """Replaces lost processes of a trainer, and knows the last state that a checkpoint can be made of.

    Args:
        trainer: An EpisodeTrainer.
        warn: Called with a sentence when something was lost.
    """

    def __init__(self, trainer: Any, warn: Callable[[str], None]) -> None:
        self._trainer = trainer
        self._warn = warn
        self._looked = 0.0
        self._asked: list[Any] = []
        self._safe: tuple[int, dict[str, Any]] | None = None
        self._version = 0
        self._updating = False
        self.stop_asked = False
        """Set it to stop the run as soon as the state after a whole step is, or can be, saved."""

    def look(self) -> None:
        """Replace lost workers, and send weights to restarted and new servers; called while the trainer waits."""
        self._stop_if_asked()
        if time.monotonic() - self._looked < _LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        self._trainer.agent_loop_manager.replace_lost()
        if self._is_restarted(0):
            self._send_again()
        if joined := self._trainer.joined_servers():
            self._send_again()  # before they get requests: they have the initial weights
            self._trainer.agent_loop_manager.add_servers(joined)

    def _is_restarted(self, seconds: float) -> bool:
        """Whether a server says, within so many seconds, that it was restarted and waits for weights."""
        if not self._asked:
            self._asked = [
                server.lacks_weights.remote() for server in self._trainer.servers if hasattr(server, "lacks_weights")
            ]
        count = len(self._asked)
        done, self._asked = ray.wait(self._asked, num_returns=count, timeout=seconds) if count else ([], [])
        return any(map(_answer, done))

    def _send_again(self) -> None:
        self.sync(lambda: self._trainer.send_weights(self._version), self._version)

    def sync(self, send: Callable[[], Any], version: int) -> None:
        """Send the weights to the rollout servers, again if one dies meanwhile."""
        self._version = version
        self._asked = []
        if self._is_restarted(_LOOK_SECONDS):  # a forked server may be back before anybody has looked
            self._warn("A rollout server died and was restarted; sending it the current weights.")
        until = time.monotonic() + _SYNC_SECONDS
        while True:
            try:
                send()
                return
            except RayError as error:
                if not _is_lost_server(error) or time.monotonic() > until:
                    raise
                self._warn("A rollout server died while it received new weights; sending them again.")
                time.sleep(_LOOK_SECONDS)

    def step_done(self) -> None:
        """Note that model and records agree: a checkpoint can be made until the next update begins."""
        trainer, self._updating = self._trainer, False
        # A copy: the curriculum's history of later groups must not get into it.
        self._safe = (trainer.global_steps, copy.deepcopy(trainer.train_dataloader.state_dict()))

    def update_begins(self) -> None:
        """Note that the model is between two steps from now on."""
        self._stop_if_asked()
        self._safe, self._updating = None, True

    def _stop_if_asked(self) -> None:
        """Stop, unless a step is between its update and its record, or only the end of a step can be saved."""
        if not self.stop_asked or self._updating:
            return
        trainer = self._trainer
        if self._safe is None or trainer.saves_late or not trainer.saving.every or self._is_saved(self._safe[0]):
            raise StopAsked

    def _is_saved(self, step: int) -> bool:
        return (Path(self._trainer.config.trainer.default_local_dir) / f"global_step_{step}").exists()

    def save(self, folder: Path) -> str:
        """Save the state after the last good step, if it is still there; return a sentence about it, or nothing.

        Never raises, and does not wait for ever: what failed may be needed to save.
        """
        if self._safe is None or not self._trainer.saves_late or (folder / f"global_step_{self._safe[0]}").exists():
            return ""
        (step, position), trainer, saved = self._safe, self._trainer, threading.Event()
        trainer.emit("phase", LAST_SAVE)

        def write() -> None:
            # The data loader has moved on since: the groups of the failed step must be played again.
            trainer.global_steps, trainer.train_dataloader = step, _Position(position)
            try:
                trainer.save(folder)
                saved.set()
            except Exception as error:  # noqa: BLE001  (the run stops for another reason, which is reported already)
                self._warn(f"The state after step {step} could not be saved: {_last_line(error)}.")

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
