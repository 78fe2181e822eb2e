"""What a training run does about faults: groups that are replaced, processes that are lost, a last checkpoint."""

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
from ray.exceptions import RayActorError, RayError, RayTaskError

from turnsmith.errors import TrainingFailure
from turnsmith.rollout.episode_groups import episode_name
from turnsmith.trainer.driver.watchdog import SAVING
from turnsmith.trainer.verl.workers import PARTITION

_LOOK_SECONDS = 1.0
_AGAIN_SECONDS = 0.2
_SYNC_SECONDS = 300.0
_SAVE_SECONDS = 600.0
NOTHING_TO_TRAIN_ON = "no materializable trajectories"
"""What verl's synchronous replay buffer says of a batch in which every episode failed; the other one says nothing."""
_MOST_REPLACED = 8
"""Groups that may be replaced in a step, for each group that it needs: more means that nothing ever works."""


def episode_names(batch: Any) -> list[str]:
    """The names of the episodes in a batch of verl's, whose keys are `{uid}_{session}_{index}`."""
    return [episode_name(*key.rsplit("_", 2)[:2]) for key in batch.keys]


def replace_dropped_groups(buffer: Any, batch_size: int) -> Callable[[], None]:
    """Let a replay buffer replace every group in which an episode was dropped, but not for ever.

    verl's synchronous one replaces only groups of which nothing is left; others stay, and what is missing in them is
    filled up silently. Returns a function to call at the beginning of each step.
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
                f"{replaced} groups were dropped in one step, and it still has too few: mend what fails, or set the "
                "policy in `failures` to mask."
            )
        return refill(number)

    def begin() -> None:
        nonlocal replaced
        replaced = 0

    buffer._terminal_eviction_reasons, buffer.refill_fn = reasons, replace
    return begin


def keep_until_handed_over(buffer: Any, finish: Callable[[list[str]], bool], replace_lost: Callable[[], None]) -> None:
    """Let a replay buffer give a batch away only when the records of its episodes are safe, too.

    A worker that is lost in between has put its episodes into the queue, but how they went is lost with it. Then the
    batch is put back, the worker's groups are played again, and the same groups make up the batch in the end.

    Args:
        buffer: verl's replay buffer.
        finish: Takes over the records of the groups that it is given; returns whether all of them came.
        replace_lost: Starts new workers for those that are gone, and sends them what these had in hand.
    """
    sample, materialize = buffer.sample, buffer._materialize_batch
    chosen: list[str] = []

    def remember(partition_id: str, selected_prompt_uids: list[str], partition_snapshot: dict[str, Any]) -> Any:
        chosen[:] = selected_prompt_uids
        return materialize(partition_id, selected_prompt_uids, partition_snapshot)

    def sample_and_finish(global_steps: int, partition_id: str, batch_size: int) -> Any:
        while True:
            found = sample(global_steps=global_steps, partition_id=partition_id, batch_size=batch_size)
            if partition_id == PARTITION and not found[0].keys:
                raise RuntimeError(NOTHING_TO_TRAIN_ON)
            if partition_id != PARTITION or finish(chosen):
                return found
            tags = [{"is_prompt": True, "status": "finished", "global_steps": global_steps} for _ in chosen]
            transfer_queue.kv_batch_put(keys=list(chosen), partition_id=partition_id, tags=tags)
            replace_lost()
            time.sleep(_AGAIN_SECONDS)  # that a worker is gone may be known here a moment later

    buffer._materialize_batch, buffer.sample = remember, sample_and_finish


class Recovery:
    """Looks after a trainer's processes, and remembers the last state that a checkpoint may be made of.

    Args:
        trainer: An EpisodeTrainer.
        tell: Called with a sentence when something was lost.
    """

    def __init__(self, trainer: Any, tell: Callable[[str], None]) -> None:
        self._trainer = trainer
        self._tell = tell
        self._looked = 0.0
        self._asked: list[Any] = []
        self._safe: tuple[int, dict[str, Any]] | None = None
        self._version = 0

    def look(self) -> None:
        """Replace workers that are gone and send weights to servers that were started again; called while waiting."""
        if time.monotonic() - self._looked < _LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        self._trainer.agent_loop_manager.replace_lost()
        if not self._asked:
            servers = self._trainer.llm_server_manager.server_handles
            self._asked = [server.lacks_weights.remote() for server in servers if hasattr(server, "lacks_weights")]
        done, self._asked = ray.wait(self._asked, num_returns=len(self._asked), timeout=0) if self._asked else ([], [])
        if any(map(_answer, done)):
            self._tell("A rollout server was lost and started again; it gets the weights of now.")
            self.sync(lambda: self._trainer.checkpoint_manager.update_weights(self._version), self._version)

    def sync(self, send: Callable[[], Any], version: int) -> None:
        """Send the weights of a version to the rollout servers, again where one is lost meanwhile."""
        self._version = version
        until = time.monotonic() + _SYNC_SECONDS
        while True:
            try:
                send()
                return
            except RayError as error:
                if not _is_lost_server(error) or time.monotonic() > until:
                    raise
                self._tell("A rollout server was lost while it got new weights; they are sent again.")
                time.sleep(_LOOK_SECONDS)

    def step_done(self) -> None:
        """The model is now what the records say; a checkpoint may be made of it until the next update begins."""
        trainer = self._trainer
        # A copy: what a curriculum is told of the next groups must not reach it.
        self._safe = (trainer.global_steps, copy.deepcopy(trainer.train_dataloader.state_dict()))

    def update_begins(self) -> None:
        """From here on the model is between two steps."""
        self._safe = None

    def save(self, folder: Path) -> str:
        """Save the state after the last step, if it is still there; return a sentence about it, or nothing.

        Never raises, and does not wait for ever: what has failed may be what saving needs.
        """
        if self._safe is None or not self._trainer.saves_late or (folder / f"global_step_{self._safe[0]}").exists():
            return ""
        (step, position), trainer, saved = self._safe, self._trainer, threading.Event()
        trainer.emit("phase", SAVING)

        def write() -> None:
            # The loader has moved on since: the groups of the step that failed are to be played again.
            trainer.global_steps, trainer.train_dataloader = step, _Position(position)
            try:
                trainer.save(folder)
                saved.set()
            except Exception as error:  # noqa: BLE001  (the reason to stop is another one, and is told already)
                self._tell(f"The state after step {step} could not be saved: {type(error).__name__}.")

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        thread.join(_SAVE_SECONDS)
        return f"The state after step {step} was saved." if saved.is_set() else ""


class _Position:
    """Stands where the data loader is, and says where it was."""

    def __init__(self, position: dict[str, Any]) -> None:
        self._position = position

    def state_dict(self) -> dict[str, Any]:
        return self._position


def _answer(reference: Any) -> bool:
    try:
        return bool(ray.get(reference))
    except RayActorError:  # still being started
        return False


def _is_lost_server(error: RayError) -> bool:
    """Whether the rank that sends weights is there, and only what it sent them to is gone."""
    return isinstance(error, RayTaskError) and isinstance(error.cause, RayActorError)
