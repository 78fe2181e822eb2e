"""Groups are dropped as a whole, and a step settles only what belongs to it."""

from __future__ import annotations

from turnsmith.rollout.episode_groups import settle_groups, split_settled
from turnsmith.rollout.retry import EpisodeResult
from turnsmith.trajectory import Decision, Trajectory


def test_a_group_is_dropped_as_a_whole() -> None:
    results = [
        EpisodeResult(Trajectory(group_id=group, decision=decision))
        for group, decision in (
            ("a", Decision.KEPT),
            ("a", Decision.DROPPED),
            ("b", Decision.KEPT),
            ("a", Decision.MASKED),
        )
    ]
    settle_groups(results)
    assert [result.trajectory.decision.value for result in results] == ["dropped", "dropped", "kept", "dropped"]


def test_a_step_settles_its_own_groups_and_those_that_were_replaced() -> None:
    episodes = ("a-0 kept", "b-0 kept", "c-0 dropped", "a-1 masked", "c-1 kept", "d-0 dropped")
    episodes += ("e-0 filtered", "e-1 filtered")
    results = [
        EpisodeResult(Trajectory(episode_id=name, decision=Decision(decision)), [])
        for name, decision in map(str.split, episodes)
    ]
    now, later = split_settled(results, ["a"], group_size=2)
    assert [result.trajectory.episode_id for result in now] == ["a-0", "c-0", "a-1", "c-1", "e-0", "e-1"]
    assert [result.trajectory.episode_id for result in later] == ["b-0", "d-0"], "of d, one is not over yet"
    assert split_settled(results, None, group_size=2) == (results, [])
