"""verl's replay buffers with our rules: which groups are replaced, waited for and handed out, and when."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import transfer_queue
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from turnsmith.errors import TrainingFailure
from turnsmith.rollout.episode_groups import episode_name
from turnsmith.trainer.verl.workers import PARTITION

_POLL_SHARE = 0.02
_POLL_SECONDS = (0.005, 0.5)
_AGAIN_SECONDS = 0.2
_MOST_REPLACED = 8
"""Limit on replaced groups in a step, per group that it needs: more means that nothing works."""
NOTHING_TO_TRAIN_ON = "no materializable trajectories"
"""The error of verl's synchronous replay buffer when every episode of a batch failed; the other raises none."""

EvictionReasons = tuple[set[str], set[str], set[str], Counter[Any]]
"""verl's groups to evict: too old, filtered by verl, failed; and counts of the filtered ones."""


class EpisodeReplayBuffer(ReplayBuffer):
    """verl's buffer for a schedule in which every episode of a step is generated in it.

    Args:
        look: Called while it waits.
        finish: Collects the records of the given groups; returns whether all of them arrived.
        replace_lost: Replaces lost workers, and sends the new ones their groups.
        groups_per_step: Groups that a step trains on.
        replaces: Whether every group that was dropped is replaced, up to a limit. verl's buffer replaces only groups of
            which nothing is left; it keeps others and pads them silently.
        filters: Whether groups with equal rewards are among those that are dropped. verl's own filter plays two groups
            for each that it replaces, and discards what is left over.
        dispatch: Begins so many new groups.
        settings: What verl's own buffer takes.
    """

    has_prompts = False
    """Whether the queue also holds what each group starts from, which a checkpoint is resumed with."""

    def __init__(
        self,
        *,
        look: Callable[[], None],
        finish: Callable[[list[str]], bool],
        replace_lost: Callable[[], None],
        groups_per_step: int,
        replaces: bool,
        filters: bool,
        dispatch: Callable[[int], Any],
        **settings: Any,
    ) -> None:
        super().__init__(refill_fn=self._replace, **settings)
        self.groups_per_step = groups_per_step
        self._look, self._finish, self._replace_lost, self._dispatch = look, finish, replace_lost, dispatch
        self._replaces, self._filters = replaces, filters
        self._replaced = 0
        self._since = time.monotonic()
        self._chosen: list[str] = []
        self._prompts: dict[str, Any] = {}
        self.too_old: list[str] = []
        """Groups that were dropped because they exceeded `training.max_staleness`."""

    def begin_step(self) -> None:
        """Count replaced groups from 0 again."""
        self._replaced = 0

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> Any:
        """Hand out a batch only when the records of its episodes have arrived as well.

        A worker that dies in between has put its episodes into the queue, but their records are lost with it. Then the
        batch is put back, the worker's groups are replayed, and the batch is made of the same groups in the end.
        """
        self._since = time.monotonic()
        while True:
            found = super().sample(global_steps=global_steps, partition_id=partition_id, batch_size=batch_size)
            if partition_id == PARTITION and not found[0].keys:
                raise RuntimeError(NOTHING_TO_TRAIN_ON)
            if partition_id != PARTITION or self._finish(self._chosen):
                return found
            self._put_back(partition_id)
            self._replace_lost()
            time.sleep(_AGAIN_SECONDS)  # the loss of a worker may be known here a moment later

    def _put_back(self, partition_id: str) -> None:
        begun = self.prompt_global_steps[partition_id]  # as it was when they were taken: they are that old
        tags = [{"is_prompt": True, "status": "finished", "global_steps": begun[uid]} for uid in self._chosen]
        transfer_queue.kv_batch_put(keys=list(self._chosen), partition_id=partition_id, tags=tags, **self._prompts)

    def _materialize_batch(
        self, partition_id: str, selected_prompt_uids: list[str], partition_snapshot: dict[str, Any]
    ) -> Any:
        self._chosen = list(selected_prompt_uids)
        if self.has_prompts and self._chosen:  # before verl clears them
            fields = transfer_queue.kv_batch_get(keys=list(self._chosen), partition_id=partition_id)
            self._prompts = {"fields": fields}
        return super()._materialize_batch(partition_id, selected_prompt_uids, partition_snapshot)

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        # verl sleeps for 2 s between polls. Sleeping a share of the time waited so far costs at most that share.
        self._look()
        waited = time.monotonic() - self._since
        time.sleep(min(max(_POLL_SHARE * waited, _POLL_SECONDS[0]), _POLL_SECONDS[1]))
        return last_debug_time

    def _terminal_eviction_reasons(self, global_steps: int, partition_id: str) -> EvictionReasons:
        reasons = super()._terminal_eviction_reasons(global_steps, partition_id)
        if not self._replaces or partition_id == "val":
            return reasons
        return reasons[0], reasons[1], set(self.failure_keys[partition_id]), reasons[3]

    def _evict_terminal_groups(self, global_steps: int, partition_id: str, eviction_reasons: EvictionReasons) -> Any:
        self.too_old += sorted(eviction_reasons[0])
        return super()._evict_terminal_groups(global_steps, partition_id, eviction_reasons)

    def _replace(self, number: int) -> Any:
        self._replaced += number * self._replaces
        if self._replaced > _MOST_REPLACED * self.groups_per_step:
            raise TrainingFailure(
                f"{self._replaced} groups were replaced in one step, and it still has too few: {_why(self._filters)}"
            )
        return self._dispatch(number)


class AsyncEpisodeReplayBuffer(EpisodeReplayBuffer, ReplayBufferAsync):
    """The same for the asynchronous schedules; it waits for every group that would get too old otherwise.

    verl's own buffer waits only for groups in flight that are at the limit. If newer groups have overtaken several of
    them, they no longer fit into one step, and the rest gets too old.

    Args:
        updates_left: How many more batches this step takes, after the one that is asked for.
        more: What the other buffer takes.
    """

    has_prompts = True

    def __init__(self, *, updates_left: Callable[[], int], **more: Any) -> None:
        super().__init__(**more)
        self._updates_left = updates_left

    def _has_enough_samples(
        self, global_steps: int, partition_id: str, batch_size: int, sampleable_keys: set[str]
    ) -> bool:
        if self.max_off_policy_strategy != "wait" or len(sampleable_keys) < batch_size:
            return super()._has_enough_samples(global_steps, partition_id, batch_size, sampleable_keys)
        limit = int(self.max_off_policy_threshold or 0) - 1
        chosen, _, _ = self._select_prompt_uids(partition_id, sampleable_keys, batch_size)
        waiting = self.prompt_global_steps[partition_id]
        left = {uid: begun for uid, begun in waiting.items() if uid not in set(chosen)}
        room = self._updates_left() * batch_size
        return all_in_time(left, global_steps, limit, self.groups_per_step, room)


def all_in_time(begun: Mapping[str, int], step: int, limit: int, batch_size: int, room: int = 0) -> bool:
    """Whether groups can all be trained on before they are too old, oldest first.

    Args:
        begun: The step in which each group was dispatched.
        step: The current step.
        limit: A group that was dispatched in step s must be trained on in step s + `limit` at the latest.
        batch_size: Groups per step.
        room: Groups that the current step still takes.

    Example:
        >>> all_in_time({"a": 1, "b": 1}, step=1, limit=1, batch_size=2)
        True
        >>> all_in_time({"a": 1, "b": 1, "c": 1}, step=1, limit=1, batch_size=2)  # step 2 takes two of them
        False
        >>> all_in_time({"a": 1, "b": 1, "c": 1}, step=1, limit=1, batch_size=2, room=1)
        True
    """
    due = 0
    for begin, count in sorted(Counter(begun.values()).items()):
        due += count
        if due > room + max(0, begin + limit - step) * batch_size:
            return False
    return True


def episode_names(batch: Any) -> list[str]:
    """The ids of the episodes in a batch of verl's, whose keys are `{uid}_{session}_{segment}`."""
    names = (key.rsplit("_", 2) for key in batch.keys)
    return [episode_name(uid, session) for uid, session, segment in names if segment == "0"]


def _why(filters: bool) -> str:
    if filters:
        return (
            "in nearly all of them the rewards were equal, so the tasks are too easy or too hard for the model. Use "
            "others, larger groups (training.group_size) or partial rewards, or leave out training.filter_groups."
        )
    return (
        "fix what fails, use mask instead of drop in `failures`, or raise training.max_staleness if they got too old."
    )
