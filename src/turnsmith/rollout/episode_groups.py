"""Ids of episodes and of their groups, and which finished episodes belong to a training step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from turnsmith.rollout.retry import EpisodeResult
from turnsmith.trajectory import Decision


def episode_name(group: str, number: int | str) -> str:
    """The id of an episode: its group's id and its number there.

    Example:
        >>> episode_name("00000017", 3)
        '00000017-3'
    """
    return f"{group}-{number}"


def group_name(episode_id: str) -> str:
    """The id of an episode's group.

    Example:
        >>> group_name("00000017-3")
        '00000017'
    """
    return episode_id.rpartition("-")[0]


def split_settled(
    finished: Iterable[EpisodeResult], groups: Collection[str] | None, group_size: int
) -> tuple[list[EpisodeResult], list[EpisodeResult]]:
    """Split finished episodes into those that a step settles and those that wait for a later step.

    Args:
        finished: Episodes that have ended.
        groups: The groups in the step's batch; None: there is no later step, so all are settled.
        group_size: Episodes per group. A dropped group is in no batch: it is settled once all its episodes have ended.
    """
    pairs = [(group_name(result.trajectory.episode_id), result) for result in finished]
    if groups is None:
        return [result for _, result in pairs], []
    ended = Counter(group for group, _ in pairs)
    dropped = {group for group, result in pairs if result.trajectory.decision is Decision.DROPPED}
    now = set(groups) | {group for group in dropped if ended[group] == group_size}
    return [result for group, result in pairs if group in now], [result for group, result in pairs if group not in now]


def settle_groups(results: Iterable[EpisodeResult]) -> None:
    """Where one episode is dropped, drop its whole group; the trainer replaces it by a group from another start."""
    trajectories = [result.trajectory for result in results]
    dropped = {trajectory.group_id for trajectory in trajectories if trajectory.decision is Decision.DROPPED}
    for trajectory in trajectories:
        if trajectory.group_id in dropped:
            trajectory.decision = Decision.DROPPED
