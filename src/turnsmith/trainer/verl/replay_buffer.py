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
"""The most replaced groups in a step, for each group that it needs; beyond that, training fails."""
NOTHING_TO_TRAIN_ON = "no materializable trajectories"
"""The error of verl's synchronous replay buffer when every episode of a batch failed; the asynchronous has none."""

EvictionReasons = tuple[set[str], set[str], set[str], Counter[Any]]
"""verl's groups to evict: too old, filtered by verl, failed; and counts of the filtered ones."""


class EpisodeReplayBuffer(ReplayBuffer):
    """verl's buffer for a schedule in which every episode of a step is generated in it.

    Args:
        on_poll: Called while it waits.
        collect_records: Collects the records of these groups; returns whether all of them have arrived.
        replace_lost: Replaces lost workers, and sends the new ones their groups.
        groups_per_step: Groups that a step trains on.
        replaces: Whether every group that was dropped is replaced, up to a limit. verl's buffer replaces only groups of
            which no episode is left; it keeps others and pads them silently.
        filters: Whether groups with equal rewards are dropped too. verl's own filter plays two groups for each that it
            replaces, and discards the rest.
        dispatch: Starts this many new groups.
        settings: Arguments of verl's own buffer.
    """

    has_prompts = False
    """Whether the queue also holds the starts of groups, from which a resumed run replays them."""

    def __init__(
        self,
        *,
        on_poll: Callable[[], None],
        collect_records: Callable[[list[str]], bool],
        replace_lost: Callable[[], None],
        groups_per_step: int,
        replaces: bool,
        filters: bool,
        dispatch: Callable[[int], Any],
        **settings: Any,
    ) -> None:
        super().__init__(refill_fn=self._replace, **settings)
        self.groups_per_step = groups_per_step
        self._on_poll, self._collect_records = on_poll, collect_records
        self._replace_lost, self._dispatch = replace_lost, dispatch
        self._replaces, self._filters = replaces, filters
        self._replaced = 0
        self._since = time.monotonic()
        self._chosen: list[str] = []
        self._prompts: dict[str, Any] = {}

    def begin_step(self) -> None:
        """Count replaced groups from 0 again."""
        self._replaced = 0

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> Any:
        """Return a batch once the records of its episodes have arrived too.

        A worker may die after its episodes are in the queue and before their records are sent. Then the batch is put
        back, the worker's groups are replayed, and the batch is made of the same groups.
        """
        self._since = time.monotonic()
        while True:
            batch = super().sample(global_steps=global_steps, partition_id=partition_id, batch_size=batch_size)
            if partition_id == PARTITION and not batch[0].keys:
                raise RuntimeError(NOTHING_TO_TRAIN_ON)
            if partition_id != PARTITION or self._collect_records(self._chosen):
                return batch
            self._put_back(partition_id)
            self._replace_lost()
            time.sleep(_AGAIN_SECONDS)  # this process may learn of a lost worker a moment later

    def _put_back(self, partition_id: str) -> None:
        begun = self.prompt_global_steps[partition_id]  # with their age, as when they were taken
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
        # verl sleeps for 2 s between polls. A share of the time waited so far delays by at most that share.
        self._on_poll()
        waited = time.monotonic() - self._since
        time.sleep(min(max(_POLL_SHARE * waited, _POLL_SECONDS[0]), _POLL_SECONDS[1]))
        return last_debug_time

    def _terminal_eviction_reasons(self, global_steps: int, partition_id: str) -> EvictionReasons:
        reasons = super()._terminal_eviction_reasons(global_steps, partition_id)
        if not self._replaces or partition_id == "val":
            return reasons
        return reasons[0], reasons[1], set(self.failure_keys[partition_id]), reasons[3]

    def _replace(self, number: int) -> Any:
        self._replaced += number * self._replaces
        if self._replaced > _MOST_REPLACED * self.groups_per_step:
            raise TrainingFailure(
                f"{self._replaced} groups were replaced in one step, and it still has too few: {_why(self._filters)}"
            )
        return self._dispatch(number)


class AsyncEpisodeReplayBuffer(EpisodeReplayBuffer, ReplayBufferAsync):
    """The buffer for the asynchronous schedules, which waits for every group that would otherwise get too old.

    verl's own buffer waits only for groups in flight that are at the limit. If newer groups have overtaken several of
    them, they no longer fit into one step, and the rest gets too old.

    Args:
        updates_left: How many more batches this step takes after the next one.
        max_staleness: `training.max_staleness`.
        more: Arguments of `EpisodeReplayBuffer`.
    """

    has_prompts = True

    def __init__(self, *, updates_left: Callable[[], int], max_staleness: int, **more: Any) -> None:
        super().__init__(**more)
        self._updates_left = updates_left
        self._max_staleness = max_staleness

    def _has_enough_samples(
        self, global_steps: int, partition_id: str, batch_size: int, sampleable_keys: set[str]
    ) -> bool:
        if len(sampleable_keys) < batch_size:
            return super()._has_enough_samples(global_steps, partition_id, batch_size, sampleable_keys)
        chosen, _, _ = self._select_prompt_uids(partition_id, sampleable_keys, batch_size)
        waiting = self.prompt_global_steps[partition_id]
        left = {uid: begun for uid, begun in waiting.items() if uid not in set(chosen)}
        room = self._updates_left() * batch_size
        return all_in_time(left, global_steps, self._max_staleness, self.groups_per_step, room)


def all_in_time(begun: Mapping[str, int], step: int, limit: int, batch_size: int, room: int = 0) -> bool:
    """Whether all groups can be trained before they are too old, oldest first.

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
    """The ids of the episodes in a verl batch, whose keys are `{uid}_{session}_{segment}`."""
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
