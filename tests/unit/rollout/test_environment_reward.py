"""`EnvironmentRewardWrapper` where it is used: as the `reward_fn` of an episode, and on answers alone."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest

from turnsmith import (
    BaseEnvironment,
    Chat,
    ConfigError,
    EnvironmentFailure,
    EnvironmentRewardWrapper,
    EnvironmentSpec,
    EpisodeStart,
    Limits,
    Outcome,
    Sampling,
    ScriptedEngine,
    Trajectory,
    run_episode,
)
from turnsmith.env.examples import GuessNumber


@pytest.fixture(scope="module")
def chat(tiny_folder: str) -> Chat:
    from transformers import AutoTokenizer

    return Chat(AutoTokenizer.from_pretrained(tiny_folder))


async def play(chat: Chat, reward_fn: Any) -> Trajectory:
    return await run_episode(
        EpisodeStart("e", seed=5),
        environment=EnvironmentSpec.of(GuessNumber),
        engine=ScriptedEngine(["8", "9"], chat),
        chat=chat,
        limits=Limits(),
        sampling=Sampling(),
        reward_fn=reward_fn,
    )


def by_trajectory(trajectory: Trajectory) -> float:
    return 1 / trajectory.num_turns


def by_environment(trajectory: Trajectory, environment: GuessNumber) -> float:
    return float(environment.step_count)


async def later(trajectory: Trajectory) -> float:
    return 0.25


@pytest.mark.parametrize(
    ("reward_fn", "score"), [(None, 1.0), (by_trajectory, 0.5), (by_environment, 2.0), (later, 0.25)]
)
async def test_an_episode_gets_its_reward(chat: Chat, reward_fn: Any, score: float) -> None:
    trajectory = await play(chat, EnvironmentRewardWrapper(GuessNumber(), reward_fn))
    assert (trajectory.outcome, trajectory.score) == (Outcome.COMPLETED, score)


@pytest.mark.parametrize("reward_fn", [by_environment, later])
async def test_a_reward_out_of_its_range_is_a_failure(chat: Chat, reward_fn: Any) -> None:
    trajectory = await play(chat, EnvironmentRewardWrapper(GuessNumber, reward_fn, low=0.5, high=1))
    assert trajectory.outcome is Outcome.REWARD_FAILED
    assert trajectory.error in (
        "by_environment returned 2, which is outside 0.5 to 1.",
        "later returned 0.25, which is outside 0.5 to 1.",
    )


@pytest.mark.parametrize("value", [math.nan, None, "much"])
async def test_a_value_that_is_not_a_number_is_a_failure(chat: Chat, value: Any) -> None:
    trajectory = await play(chat, EnvironmentRewardWrapper(GuessNumber, lambda trajectory: value))
    assert trajectory.outcome is Outcome.REWARD_FAILED
    assert f"<lambda> returned {str(value)!r}; it must return a finite number." == trajectory.error


def test_answers_alone_are_played_in_fresh_environments() -> None:
    reward = EnvironmentRewardWrapper(GuessNumber({"max_steps": 3}), by_environment)
    assert reward.compute_batch_rewards(["9", "10", "x"]).tolist() == [1.0, 1.0, 1.0]
    own = EnvironmentRewardWrapper(GuessNumber)
    assert own.compute_batch_rewards(["9", "9"], seeds=[5, 6]).tolist() == [1.0, 0.0]
    assert own.compute_batch_rewards([]).shape == (0,)


def test_a_failing_environment_is_reported() -> None:
    class Broken(BaseEnvironment):
        def reset(self) -> str:
            return "Go."

        def step(self, action: str) -> Any:
            raise RuntimeError("no board")

    with pytest.raises(EnvironmentFailure, match="no board"):
        EnvironmentRewardWrapper(Broken).compute_batch_rewards(["x"])


def test_it_is_pickled_without_the_environment_it_was_made_with() -> None:
    environment = GuessNumber({"max_steps": 3})
    environment.state = lambda: None  # such an object cannot be pickled
    sent = pickle.loads(pickle.dumps(EnvironmentRewardWrapper(environment, by_trajectory, high=1)))  # noqa: S301
    assert sent(Trajectory(actions=["a", "b"])) == 0.5
    assert sent.environment.build().max_steps == 3


def test_a_range_the_wrong_way_round_is_refused() -> None:
    with pytest.raises(ConfigError, match="low must be below high"):
        EnvironmentRewardWrapper(GuessNumber, low=1, high=0)
