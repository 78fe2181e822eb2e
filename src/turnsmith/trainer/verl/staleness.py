"""Keeps episodes from getting older than `training.max_staleness`, in versions of the weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any


def bound_staleness(buffer: Any, limit: int, batch_size: int, updates_left: Callable[[], int]) -> None:
    """Make a replay buffer wait for every group that could not be trained on in time otherwise.

    verl's own buffer waits only for groups in flight that are at the limit. If newer groups have overtaken several of
    them, they no longer fit into one step, and the rest gets too old.

    Args:
        buffer: verl's asynchronous replay buffer.
        limit: Versions that the first token of a group may lag behind the weights that train on it.
        batch_size: Groups per step.
        updates_left: How many more batches this step takes, after the one that is asked for.
    """

    def has_enough_samples(global_steps: int, partition_id: str, batch_size_now: int, sampleable: set[str]) -> bool:
        if len(sampleable) < batch_size_now:
            return False
        waiting = buffer.prompt_global_steps[partition_id]
        chosen, _, _ = buffer._select_prompt_uids(partition_id, sampleable, batch_size_now)
        left = {uid: begun for uid, begun in waiting.items() if uid not in set(chosen)}
        return all_in_time(left, global_steps, limit, batch_size, room=updates_left() * batch_size_now)

    buffer._has_enough_samples = has_enough_samples


def note_dropped(buffer: Any) -> list[str]:
    """A list that a replay buffer adds each group to which it drops because the group got too old."""
    evict, dropped = buffer._evict_terminal_groups, list[str]()

    def note_and_evict(global_steps: int, partition_id: str, eviction_reasons: tuple[set[str], Any, Any, Any]) -> Any:
        dropped.extend(sorted(eviction_reasons[0]))
        return evict(global_steps, partition_id, eviction_reasons)

    buffer._evict_terminal_groups = note_and_evict
    return dropped


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
