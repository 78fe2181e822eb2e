"""Ids of episodes and of their groups, and which finished episodes belong to a training step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from turnsmith.rollout.retry import EpisodeResult
from turnsmith.trajectory import Decision, Trajectory

_REPLACED = (Decision.DROPPED, Decision.FILTERED)


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
        group_size: Episodes per group. A group that was replaced is in no batch: it is settled once all its episodes
            have ended.
    """
    pairs = [(group_name(result.trajectory.episode_id), result) for result in finished]
    if groups is None:
        return [result for _, result in pairs], []
    ended = Counter(group for group, _ in pairs)
    replaced = {group for group, result in pairs if result.trajectory.decision in _REPLACED}
    now = set(groups) | {group for group in replaced if ended[group] == group_size}
    return [result for group, result in pairs if group in now], [result for group, result in pairs if group not in now]


class GroupFilter:
    """Finds groups whose episodes all got the same reward: comparing them teaches nothing.

    Example:
        >>> lost, won = (Trajectory("a-0", rewards=[0.0]), Trajectory("a-1", rewards=[1.0]))
        >>> groups = GroupFilter(group_size=2)
        >>> groups.add(lost), groups.add(won), lost.decision.value
        (False, False, 'kept')
        >>> first, second = (Trajectory(f"b-{number}", rewards=[1.0]) for number in range(2))
        >>> groups.add(first), groups.add(second), first.decision.value
        (False, True, 'filtered')
    """

    def __init__(self, group_size: int) -> None:
        self._group_size = group_size
        self._incomplete: dict[str, list[Trajectory]] = {}

    def add(self, trajectory: Trajectory) -> bool:
        """Add an episode that has ended; returns whether it completes a group of equal rewards, now `filtered`.

        Masked episodes are not compared. A group with fewer than two others stays as it is, as does a dropped one.
        """
        group = group_name(trajectory.episode_id)
        episodes = self._incomplete.setdefault(group, [])
        episodes.append(trajectory)
        if len(episodes) < self._group_size:
            return False
        del self._incomplete[group]
        counted = [episode for episode in episodes if episode.decision.is_counted]
        is_dropped = any(episode.decision is Decision.DROPPED for episode in episodes)
        if is_dropped or len(counted) < 2 or len({episode.total_reward for episode in counted}) > 1:
            return False
        for episode in counted:
            episode.decision = Decision.FILTERED
        return True


def settle_groups(results: Iterable[EpisodeResult]) -> None:
    """Where one episode is dropped, drop its whole group; the trainer replaces it by a group from another start."""
    trajectories = [result.trajectory for result in results]
    dropped = {trajectory.group_id for trajectory in trajectories if trajectory.decision is Decision.DROPPED}
    for trajectory in trajectories:
        if trajectory.group_id in dropped:
            trajectory.decision = Decision.DROPPED
