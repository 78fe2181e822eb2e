"""Which estimators are unbiased where the policy decides when to stop: exact, over all groups of a small bandit."""

from __future__ import annotations

import importlib.util
import itertools
import math
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

from turnsmith import algo

ROOT = Path(__file__).parents[3]
GO, ARM_A = 0.3, 0.4


@pytest.fixture
def bandit() -> ModuleType:
    """A fresh copy of the example, so that a test may change its numbers."""
    spec = importlib.util.spec_from_file_location("stopping_bandit", ROOT / "examples" / "stopping_bandit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["as shown", "other numbers"])
def bandits(bandit: ModuleType, request: pytest.FixtureRequest) -> ModuleType:
    """The example, and a variant with rewards for continuing and a different policy."""
    if request.param == "other numbers":
        bandit.REWARDS = torch.tensor([[0.3, 0, 0], [-0.7, 0.1, 2.2], [-0.7, 0.1, -1.3]], dtype=torch.float64)
        logits = torch.tensor([1.1, -0.6], dtype=torch.float64)
        bandit.SCORES = torch.autograd.functional.jacobian(bandit.log_probs, logits)
        bandit.PROBS = bandit.log_probs(logits).sum(dim=1).exp()
        bandit.EXACT = torch.autograd.functional.jacobian(bandit.mean_reward, logits)
    return bandit


def close(actual: torch.Tensor, *expected: float) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-9)


def test_exact_gradient_is_the_formula(bandit: ModuleType) -> None:
    after_going = ARM_A * 3
    close(bandit.EXACT, GO * (1 - GO) * (after_going - 1), GO * ARM_A * (1 - ARM_A) * 3)
    close(torch.autograd.functional.jacobian(bandit.log_probs, bandit.LOGITS)[1, 2], 0.0, 1 - ARM_A)


def test_expectation_counts_every_order_of_a_group(bandit: ModuleType) -> None:
    def value(kinds: torch.Tensor) -> torch.Tensor:
        return bandit.estimate(bandit.ESTIMATORS["GRPO"], kinds)

    every = [torch.tensor(kinds) for kinds in itertools.product(range(3), repeat=3)]
    plain = torch.stack([bandit.PROBS[kinds].prod() * value(kinds) for kinds in every]).sum(dim=0)
    torch.testing.assert_close(bandit.expectation(value, 3), plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize(
    "name", ["RLOO", "turn returns", "turn GAE, wrong values, lam 1", "turn GAE, true values, lam 0.5"]
)
def test_unbiased(bandits: ModuleType, name: str, n: int) -> None:
    if "true" in name and bandits.REWARDS[0, 0] != 1:
        probs, rewards = bandits.PROBS, bandits.REWARDS
        second = float((probs[1:] * rewards[1:, 2]).sum() / probs[1:].sum())
        bandits.ESTIMATORS[name] = bandits.critic(float(probs @ rewards.sum(dim=1)), second, lam=0.5)
    close(bandits.ratio_and_noise(bandits.ESTIMATORS[name], n)[0], 1.0, 1.0)


@pytest.mark.parametrize("n", [2, 3])
def test_dr_grpo_is_unbiased_up_to_a_factor(bandits: ModuleType, n: int) -> None:
    close(bandits.ratio_and_noise(bandits.ESTIMATORS["Dr. GRPO"], n)[0], (n - 1) / n, (n - 1) / n)


def weight_of_turn_two(n: int) -> float:
    """Expected (m - 1) / m, with m the number of episodes that reach turn 2, the episode itself included."""
    chances = [math.comb(n - 1, others) * GO**others * (1 - GO) ** (n - 1 - others) for others in range(n)]
    return sum(chance * others / (others + 1) for others, chance in enumerate(chances))


@pytest.mark.parametrize("n", [2, 3])
def test_a_mean_by_turn_that_contains_the_turn_itself_makes_late_turns_learn_slower(bandit: ModuleType, n: int) -> None:
    biased = bandit.ratio_and_noise(bandit.by_turn_index, n)[0]
    close(biased, (n - 1) / n, weight_of_turn_two(n))
    # GiGPO's turn term is the same on this bandit, where all episodes that reach turn 2 start it from one observation.
    gigpo = bandit.ratio_and_noise(bandit.ESTIMATORS["GiGPO, no std"], n)[0]
    close(gigpo - biased, (n - 1) / n, (n - 1) / n)


def test_rewards_centred_by_turn_index_give_no_credit_for_going_on(bandit: ModuleType) -> None:
    estimator = bandit.ESTIMATORS["not shipped: rewards - mean of turn k, then summed"]
    for n in (2, 8):
        going, _ = bandit.ratio_and_noise(estimator, n)[0]
        # Exact: 1.2 after going against 1 for stopping. Centred, what comes after going is 0 on average.
        assert going == pytest.approx((n - 1) / n * (0 - 1) / (1.2 - 1))


@pytest.mark.parametrize("n", [2, 3])
def test_pass_at_k_climbs_the_best_of_the_group(bandits: ModuleType, n: int) -> None:
    best = bandits.REWARDS.sum(dim=1)
    logits = bandits.PROBS.log()

    def expected_best(shift: torch.Tensor) -> torch.Tensor:
        # To first order in the two logits of the policy the episodes' log-probs move by their scores.
        probs = (logits + bandits.SCORES.sum(dim=1) @ shift).exp()
        every = [torch.tensor(kinds) for kinds in itertools.product(range(3), repeat=n)]
        return torch.stack([probs[kinds].prod() * best[kinds].max() for kinds in every]).sum()

    exact = torch.autograd.functional.jacobian(expected_best, torch.zeros(2, dtype=torch.float64))
    estimator = bandits.ESTIMATORS["pass@k, no std"]
    gradient = bandits.expectation(lambda kinds: bandits.estimate(estimator, kinds), n)
    torch.testing.assert_close(gradient, exact / n, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(gradient / gradient.norm(), bandits.EXACT / bandits.EXACT.norm(), atol=0.01)


@pytest.mark.parametrize("name", ["REINFORCE++", 'turn returns, scale "group" or "batch"'])
def test_the_bias_of_one_scale_for_a_batch_falls_with_the_batch(bandit: ModuleType, name: str) -> None:
    gaps = [float((bandit.ratio_and_noise(bandit.ESTIMATORS[name], n)[0] - 1).abs().max()) for n in (3, 12)]
    assert gaps == sorted(gaps, reverse=True)


def test_scaling_by_group_equals_scaling_by_batch_for_one_group(bandit: ModuleType) -> None:
    by_group = bandit.grouped(algo.compute_turn_return_advantage, gamma=1.0, scale="group")
    kinds = torch.tensor([0, 1, 2, 1])
    assert torch.equal(by_group(kinds), bandit.ESTIMATORS['turn returns, scale "group" or "batch"'](kinds))


def test_docs_show_the_table(bandit: ModuleType) -> None:
    number = re.compile(r"-?\d+\.\d\d")
    page = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    made = bandit.table(2, 8).splitlines()
    first = page.index(made[0])
    shown = page[first:].splitlines()[: len(made)]
    for ours, theirs in zip(made, shown, strict=True):
        assert number.sub("", ours) == number.sub("", theirs)
        # The last digit may round either way.
        pairs = zip(number.findall(ours), number.findall(theirs), strict=True)
        assert all(abs(float(made_number) - float(shown_number)) < 0.015 for made_number, shown_number in pairs), ours
