"""Trajectories compare by their contents and print as one line, however long they are."""

from __future__ import annotations

import dataclasses
import pickle

from turnsmith import Outcome, RolloutData, Trajectory
from turnsmith.trajectory import TokenBuffer


def episode(reward: float = 0.5, length: int = 5000) -> Trajectory:
    trajectory = Trajectory(
        episode_id="e1",
        states=["a door"],
        actions=["open it"],
        rewards=[reward],
        outcome=Outcome.COMPLETED,
    )
    trajectory.tokens.open([1, 2])
    trajectory.tokens.append_model([3] * length, [-0.5] * length)
    return trajectory


def test_repr_is_one_short_line() -> None:
    trajectory = episode()
    expected = "Trajectory(episode_id='e1', outcome='completed', turns=1, tokens=5002, reward=0.5)"
    assert repr(trajectory) == str(trajectory) == expected
    assert repr(trajectory.tokens) == "TokenBuffer(tokens=5002, prompt=2, sampled=5000)"
    batch = RolloutData([trajectory, episode(reward=0.0)])
    assert repr(batch) == "RolloutData(episodes=2, turns=2, tokens=10004, mean_reward=0.25)"


def test_repr_of_what_is_still_empty() -> None:
    assert repr(TokenBuffer()) == "TokenBuffer(tokens=0, prompt=0, sampled=0)"
    assert repr(Trajectory()) == "Trajectory(episode_id='', outcome=None, turns=0, tokens=0, reward=0)"
    assert repr(RolloutData()) == "RolloutData(episodes=0, turns=0, tokens=0, mean_reward=None)"


def test_repr_shows_the_score_that_replaces_the_rewards() -> None:
    assert repr(dataclasses.replace(episode(), score=-2.0)).endswith("reward=-2.0)")


def test_episodes_that_differ_in_one_token_differ() -> None:
    assert episode() == episode() == pickle.loads(pickle.dumps(episode()))  # noqa: S301
    other = episode()
    other.tokens.ids[-1] = 4
    assert other != episode()
    assert RolloutData([episode()]) != RolloutData([other])
