"""A reward manager gives the reward of the specification, records each term, and can be pickled for workers."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
from typing import Any

import pytest
from ray import cloudpickle

from turnsmith.env.examples import CustomGameEnvironment, SupportDesk
from turnsmith.errors import ConfigError
from turnsmith.rollout.rewards.reward_function import RewardFailure, compute_score
from turnsmith.rollout.rewards.reward_manager import (
    RewardManager,
    RewardTerm,
    efficiency_bonus,
    invalid_action_penalty,
    step_rewards,
    success_bonus,
)
from turnsmith.trajectory import Trajectory


def specified_reward(trajectory: dict[str, Any], max_steps: int) -> float:
    """The four methods as the architecture document writes them."""
    total_reward = sum(trajectory["rewards"])
    if trajectory["infos"] and trajectory["infos"][-1].get("success", False):
        total_reward += 5.0
    invalid_count = sum(1 for info in trajectory["infos"] if info.get("invalid_action", False))
    total_reward -= invalid_count * 0.5
    return total_reward + (max_steps - trajectory["num_turns"]) * 0.1


def episode_of_chance(seed: int) -> dict[str, Any]:
    chance = random.Random(seed)
    turns = chance.randint(0, 8)
    infos = [chance.choice([{}, {"invalid_action": True}, {"success": True}, {"success": False}]) for _ in range(turns)]
    rewards = [chance.uniform(-2, 2) for _ in range(turns)]
    return {"actions": ["go"] * turns, "rewards": rewards, "infos": infos, "num_turns": turns}


def test_the_reward_is_that_of_the_specification_for_dicts_and_trajectories() -> None:
    manager = RewardManager(CustomGameEnvironment({"max_steps": 7}))
    for seed in range(200):
        episode = episode_of_chance(seed)
        recorded = Trajectory(actions=episode["actions"], rewards=episode["rewards"], infos=episode["infos"])
        assert manager.compute_trajectory_reward(episode) == pytest.approx(specified_reward(episode, 7))
        assert manager.compute_trajectory_reward(recorded) == manager.compute_trajectory_reward(episode)
        assert sum(manager.shares(recorded).values()) == pytest.approx(manager(recorded))


def test_a_dict_with_only_what_the_formula_reads_is_enough() -> None:
    manager = RewardManager(CustomGameEnvironment())
    assert manager.compute_trajectory_reward({"rewards": [1], "infos": [None], "num_turns": 4}) == pytest.approx(1.6)


def test_a_batch_is_a_float32_tensor() -> None:
    torch = pytest.importorskip("torch")
    manager = RewardManager(CustomGameEnvironment({"max_steps": 7}))
    episodes = [episode_of_chance(seed) for seed in range(5)]
    rewards = manager.compute_batch_rewards(episodes)
    assert (rewards.shape, rewards.dtype) == ((5,), torch.float32)
    assert rewards.tolist() == pytest.approx([specified_reward(episode, 7) for episode in episodes])


def test_importing_it_loads_no_torch() -> None:
    code = "import sys, turnsmith; turnsmith.RewardManager(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_terms_are_weighted_and_composed() -> None:
    polite = RewardTerm("polite", 0.25, lambda trajectory, environment: "please" in trajectory.actions[0])
    manager = RewardManager(terms=[step_rewards(2.0), success_bonus(1.0), invalid_action_penalty(-3), polite])
    episode = Trajectory(actions=["please", "go"], rewards=[0.5, 1.0], infos=[{"invalid_action": True}, {}])
    assert manager.shares(episode) == {
        "step_rewards": 3.0,
        "success_bonus": 0.0,
        "invalid_action_penalty": -3.0,
        "polite": 0.25,
    }


async def test_the_episodes_own_environment_is_used_and_each_term_is_recorded() -> None:
    manager = RewardManager(CustomGameEnvironment({"max_steps": 99}))
    episode = Trajectory(actions=["go"], rewards=[1.0], infos=[{"success": True}])
    assert await compute_score(manager, episode, CustomGameEnvironment({"max_steps": 3}), 9.0) == pytest.approx(6.2)
    shares = {"step_rewards": 1.0, "success_bonus": 5.0, "invalid_action_penalty": 0.0, "efficiency_bonus": 0.2}
    assert episode.reward_shares == pytest.approx(shares)


@pytest.mark.parametrize("amount", [float("nan"), float("inf"), None, "1", [1.0]])
async def test_a_term_that_gives_no_number_is_named(amount: Any) -> None:
    manager = RewardManager(terms=[step_rewards(), RewardTerm("odd", 1.0, lambda trajectory, environment: amount)])
    with pytest.raises(RewardFailure, match="term 'odd' returned"):
        await compute_score(manager, Trajectory(rewards=[1.0]), None, 9.0)


def test_invalid_terms_are_refused() -> None:
    with pytest.raises(ConfigError, match="Two reward terms are called 'step_rewards'"):
        RewardManager(terms=[step_rewards(), step_rewards(0.5)])
    with pytest.raises(ConfigError, match="not a RewardTerm"):
        RewardManager(terms=[step_rewards])  # type: ignore[list-item]
    with pytest.raises(RewardFailure, match="needs an environment with max_steps"):
        RewardManager(terms=[efficiency_bonus()]).compute_trajectory_reward({"rewards": []})


def test_it_can_be_pickled_even_if_its_environment_cannot() -> None:
    desk = SupportDesk({"max_steps": 6})
    desk.reset()
    episode = {"rewards": [1.0], "infos": [{"success": True}], "num_turns": 2}
    for manager in (
        pickle.loads(pickle.dumps(RewardManager(desk))),  # noqa: S301
        cloudpickle.loads(cloudpickle.dumps(RewardManager(desk))),
    ):
        assert manager.compute_trajectory_reward(episode) == pytest.approx(6.4)
    local = RewardManager(desk, [RewardTerm("one", 1.0, lambda trajectory, environment: 1.0)])
    assert cloudpickle.loads(cloudpickle.dumps(local)).shares(episode) == {"one": 1.0}
    desk.close()


def test_a_term_that_its_weight_makes_too_large_is_a_failure_that_names_it() -> None:
    manager = RewardManager(terms=[RewardTerm("steps", 1e300, lambda trajectory, environment: 1e9)])
    with pytest.raises(RewardFailure, match=r"The reward term 'steps' times its weight 1e\+300 returned 'inf'"):
        manager(Trajectory())
