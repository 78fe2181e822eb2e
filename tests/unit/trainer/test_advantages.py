"""What each built-in estimator needs and compares, what is told about wrong ones, and recorded episodes' advantages."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch

from turnsmith.config import Estimator, TrainingConfig
from turnsmith.errors import ConfigError
from turnsmith.records.advantages import StepAdvantages
from turnsmith.trainer.advantages import (
    ESTIMATORS,
    AdvantageInputs,
    advantage_estimator,
    advantages_of,
    get_estimator,
    turn_anchors,
)
from turnsmith.trajectory import Trajectory, TurnRecord

REWARDS, MASK = torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.ones(2, 2, dtype=torch.int64)
INPUTS = AdvantageInputs(REWARDS, MASK, ["g", "g"])


def episode(name: str, reward: float, states: tuple[str, ...] = ("a",)) -> Trajectory:
    made = Trajectory(rewards=[reward] * len(states), states=list(states), episode_id=name, group_id="g")
    made.tokens.open([5])
    for _ in states:
        made.turns.append(TurnRecord(*made.tokens.append_model([6, 7], [-0.5, -0.5]), "stop", 0))
        made.tokens.append_context([8])
    return made


def test_gae_alone_has_a_critic_and_two_estimators_compare_no_groups() -> None:
    assert [name for name, one in ESTIMATORS.items() if one.needs_critic] == ["gae"]
    assert [name for name, one in ESTIMATORS.items() if not one.compares_groups] == ["reinforce_plus_plus", "gae"]


def test_the_setting_lists_the_estimators_that_there_are() -> None:
    assert get_args(Estimator) == tuple(ESTIMATORS)


def test_an_estimator_is_shown_in_a_line() -> None:
    assert repr(get_estimator("opo")) == "AdvantageEstimator(name='opo', needs_critic=False, compares_groups=True)"


def test_an_estimator_of_the_users_own_compares_groups_and_has_no_critic_unless_it_says_so() -> None:
    plain = advantage_estimator(lambda inputs: inputs.rewards)
    assert (plain.needs_critic, plain.compares_groups, list(plain.by_credit)) == (False, True, ["episode"])
    made = advantage_estimator(needs_critic=True, compares_groups=False)(lambda inputs: inputs.rewards)
    assert (made.needs_critic, made.compares_groups) == (True, False)


def test_rewards_are_not_discounted_unless_it_is_said() -> None:
    assert (INPUTS.gamma, INPUTS.lam) == (1.0, 1.0)


def test_a_credit_that_an_estimator_lacks_is_told_with_those_that_have_it() -> None:
    with pytest.raises(ConfigError, match=r"'opo': use credit='episode', or one of grpo, dr_grpo\.$"):
        get_estimator("opo").check_credit("anchored")
    get_estimator("opo").check_credit("episode")


def test_advantages_of_another_shape_are_refused() -> None:
    short = advantage_estimator(lambda inputs: inputs.rewards[:, :1])
    with pytest.raises(ValueError, match=r"shape \(2, 1\) for rewards of shape \(2, 2\): return one for each token"):
        short.compute("episode", INPUTS)


def test_advantages_alone_are_the_returns_too() -> None:
    advantages, returns = advantage_estimator(lambda inputs: inputs.rewards).compute("episode", INPUTS)
    assert advantages is returns
    pair: Any = advantage_estimator(lambda inputs: (inputs.rewards, inputs.rewards + 1))
    advantages, returns = pair.compute("episode", INPUTS)
    assert (returns - advantages).tolist() == [[1.0, 1.0]] * 2


@pytest.mark.parametrize(
    ("estimator", "credit", "said"), [("gae", "episode", "values of a critic"), ("grpo", "anchored", "observation")]
)
def test_what_an_estimator_needs_and_does_not_get_is_named(estimator: str, credit: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        get_estimator(estimator).compute(credit, INPUTS)


def test_gae_of_recorded_episodes_uses_their_values_and_rewards() -> None:
    episodes, training = [episode("a", 1.0), episode("b", 0.0)], TrainingConfig(adv_estimator="gae", gamma=1.0, lam=1.0)
    values = {"a": [0.5, 0.25, 0.0], "b": [0.0, 0.0, 0.0]}
    plain = advantages_of(episodes, training, StepAdvantages(values=values))
    given = {name: [0.0, 2.0, 0.0] for name in "ab"}
    penalised = advantages_of(episodes, training, StepAdvantages(values=values, rewards=given))
    assert [len(row) for row in plain.values()] == [3, 3]
    assert plain["a"][0] > plain["b"][0]
    assert penalised["b"][0] > plain["b"][0], "the recorded rewards count, which a KL penalty may have changed"


def test_anchors_are_the_same_for_the_same_observation_and_fit_a_signed_integer() -> None:
    anchors = turn_anchors(episode("a", 0.0, ("door", "key", "door", "\ud800")))
    assert anchors[2::3] == [0] * 4, "nothing on what the environment says"
    assert anchors[0::3] == anchors[1::3]
    door, key, again, odd = anchors[0::3]
    assert door == again
    assert len({door, key, odd}) == 3
    assert all(0 < anchor < 2**63 for anchor in (door, key, odd))
    assert torch.tensor(anchors).tolist() == anchors


def test_anchored_grpo_divides_by_the_spread_and_dr_grpo_does_not() -> None:
    episodes = [episode(f"e{place}", reward) for place, reward in enumerate((0.0, 0.0, 8.0))]
    settings = [TrainingConfig(adv_estimator=name, credit="anchored") for name in ("grpo", "dr_grpo")]
    scaled, plain = (max(max(row) for row in advantages_of(episodes, one).values()) for one in settings)
    assert plain > 2 * scaled
