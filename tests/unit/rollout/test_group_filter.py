"""Which groups `training.filter_groups` replaces."""

from __future__ import annotations

import pytest

from turnsmith.rollout.episode_groups import GroupFilter
from turnsmith.trajectory import Decision, Outcome, Trajectory


def episode(number: int, reward: float, decision: Decision = Decision.KEPT) -> Trajectory:
    name = f"00000017-{number}"
    return Trajectory(name, rewards=[reward], actions=["a"], outcome=Outcome.COMPLETED, decision=decision)


@pytest.mark.parametrize(
    ("rewards", "is_filtered"), [((1, 1, 1), True), ((0, 0, 0), True), ((0.5, 0.5, 1), False), ((-1, 1, 1), False)]
)
def test_a_group_is_filtered_when_its_last_episode_has_the_same_reward(rewards, is_filtered):
    groups, episodes = GroupFilter(3), [episode(number, reward) for number, reward in enumerate(rewards)]
    assert [groups.add(one) for one in episodes] == [False, False, is_filtered]
    assert {one.decision for one in episodes} == {Decision.FILTERED if is_filtered else Decision.KEPT}
    assert groups._incomplete == {}


def test_masked_episodes_are_no_reason_to_keep_or_to_filter_a_group():
    groups = GroupFilter(3)
    masked = [episode(0, 0, Decision.MASKED), episode(1, 1), episode(2, 1, Decision.PENALISED)]
    assert [groups.add(one) for one in masked] == [False, False, True]
    assert [one.decision for one in masked] == [Decision.MASKED, Decision.FILTERED, Decision.FILTERED]
    alone = [episode(0, 1, Decision.MASKED), episode(1, 1, Decision.MASKED), episode(2, 1)]
    assert not any(groups.add(one) for one in alone), "one reward equals nothing"


def test_a_dropped_group_is_not_filtered_as_well():
    groups = GroupFilter(2)
    assert not any([groups.add(episode(0, 1, Decision.DROPPED)), groups.add(episode(1, 1))])
    assert groups._incomplete == {}
