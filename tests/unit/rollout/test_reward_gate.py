"""What enters a batch are numbers that training can hold: sums, scales and penalties of rewards, and log-probs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from transformers import AutoTokenizer

from turnsmith.config import EnvironmentConfig, FailuresConfig
from turnsmith.env import BaseEnvironment, EnvironmentSpec
from turnsmith.env.mix import EnvironmentMix, MixMember
from turnsmith.errors import EngineFailure
from turnsmith.inference import Chat, Generation, Sampling
from turnsmith.inference.engines.scripted_engine import ScriptedEngine
from turnsmith.rollout import EpisodeStart, Limits
from turnsmith.rollout.failure_policy import FailurePolicy
from turnsmith.rollout.retry import play_episode
from turnsmith.rollout.rewards.reward_function import RewardFailure
from turnsmith.rollout.rewards.reward_manager import RewardManager, RewardTerm
from turnsmith.rollout.spec import RolloutSpec
from turnsmith.trajectory import Decision, Outcome, Trajectory


class Paying(BaseEnvironment):
    """Pays what its settings say, in two steps."""

    def reset(self) -> str:
        return "Go."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self.step_count += 1
        return "Once more.", self.config.reward, self.step_count == 2, {}


@pytest.fixture(scope="module")
def chat(tiny_folder: str) -> Chat:
    return Chat(AutoTokenizer.from_pretrained(tiny_folder))


def play(chat: Chat, reward: float, environment: Any = Paying, failures: str = "keep", **settings: Any) -> Trajectory:
    config = EnvironmentConfig(isolation="loop", reward=reward)
    spec = RolloutSpec(
        environment=EnvironmentSpec.of(environment, config),
        failures=FailurePolicy.of(FailuresConfig(environment="mask", limit=failures)),
        **settings,
    )
    return asyncio.run(play_episode(EpisodeStart("e"), spec, ScriptedEngine(["a", "b"], chat), chat)).trajectory


def one(trajectory: Trajectory, environment: Any) -> float:
    return 1.0


def test_rewards_that_add_up_to_too_much_are_a_failure(chat: Chat) -> None:
    paid = play(chat, 5e14)
    assert (paid.outcome, paid.total_reward) == (Outcome.COMPLETED, 1e15)
    paid = play(chat, 6e14)
    assert (paid.outcome, paid.rewards, paid.is_counted) == (Outcome.REWARD_FAILED, [0.0, 0.0], False)
    assert paid.error.startswith("The rewards of the episode add up to 1200000000000000; a reward must be a number")
    scored = play(chat, 6e14, reward_fn=lambda trajectory: 1.0)
    assert (scored.outcome, scored.total_reward) == (Outcome.COMPLETED, 1.0)


def test_a_penalty_beyond_the_limits_masks(chat: Chat) -> None:
    paid = play(chat, -1e15, failures="penalise:-1000", limits=Limits(turns=1))
    assert (paid.outcome, paid.decision, paid.rewards) == (Outcome.REWARD_FAILED, Decision.MASKED, [0.0])
    assert paid.error.startswith("The reward of turn 0 is -1000000000001000; a reward must be a number from")


@pytest.mark.parametrize("scored", [False, True])
def test_a_range_that_makes_rewards_endless_is_a_failure(chat: Chat, scored: bool) -> None:
    one_each = EnvironmentSpec.of(Paying, EnvironmentConfig(isolation="loop", reward=1.0))
    mix = EnvironmentMix({"paying": MixMember(one_each, reward_range=(0, 5e-324))})
    pay = RewardManager(terms=[RewardTerm("much", 1e15, one), RewardTerm("less", -1e15, one)])
    paid = play(chat, 1.0, mix, reward_fn=pay if scored else None)
    assert (paid.outcome, paid.total_reward, paid.reward_shares) == (Outcome.REWARD_FAILED, 0.0, {})
    assert paid.error.startswith("The share of 'much' is inf" if scored else "The reward of turn 0 is inf")


def test_terms_that_add_up_to_too_much_are_a_failure() -> None:
    manager = RewardManager(terms=[RewardTerm(name, 6e14, one) for name in "ab"])
    with pytest.raises(RewardFailure, match="The sum of the reward's terms returned"):
        manager.compute_batch_rewards([Trajectory()])


def test_a_log_prob_that_float32_cannot_hold_is_refused() -> None:
    with pytest.raises(EngineFailure, match="a log-prob that is not a number"):
        Generation([5], [-1e39]).check(Sampling())
