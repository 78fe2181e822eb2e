"""The estimators that compare an episode with its group match their formulas."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.algo import reference
from tests.unit.algo.batches import CHECKED, Batch, batches, close, largest
from torch import Tensor

from turnsmith import algo
from turnsmith.algo.groups import group_deviations
from turnsmith.algo.shapes import SERIAL

Estimator = Callable[[Tensor, Tensor, object], tuple[Tensor, Tensor]]
GROUPED: dict[str, Estimator] = {
    "grpo": algo.compute_grpo_advantage,
    "dr_grpo": algo.compute_dr_grpo_advantage,
    "rloo": algo.compute_rloo_advantage,
    "opo": algo.compute_opo_advantage,
    "pass_at_k": algo.compute_pass_at_k_advantage,
}
GROUPED_AND_WHITENED = {**GROUPED, "reinforce_plus_plus_baseline": algo.compute_reinforce_plus_plus_baseline_advantage}
grouped = pytest.mark.parametrize("kind", GROUPED)
grouped_and_whitened = pytest.mark.parametrize("kind", GROUPED_AND_WHITENED)
BY_HAND = {
    "grpo": [-1, 0, 1],  # (s - 2) / 2: the mean is 2, and the standard deviation sqrt((4 + 0 + 4) / 2) = 2
    "dr_grpo": [-2, 0, 2],  # s - 2
    "rloo": [-3, 0, 3],  # 0 - (2 + 4) / 2, 2 - (0 + 4) / 2, 4 - (0 + 2) / 2
    "opo": [-2.5, -0.5, 1.5],  # s - (1 * 0 + 1 * 2 + 2 * 4) / 4
    "pass_at_k": [0, 0, 1],  # (4 - 2) / 2 for the best
    # -2, 0, 2, 2 on the four tokens: their mean is 0.5, and their variance (6.25 + 0.25 + 2.25 + 2.25) / 3
    "reinforce_plus_plus_baseline": [-2.5 * (3 / 11) ** 0.5, -0.5 * (3 / 11) ** 0.5, 1.5 * (3 / 11) ** 0.5],
}
"""Advantages of three episodes with the scores 0, 2 and 4 and with 1, 1 and 2 tokens, in one group."""


@grouped_and_whitened
def test_what_can_be_worked_out_by_hand(kind: str) -> None:
    rewards, mask = torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 3.0]]), torch.tensor([[1, 0], [1, 0], [1, 1]])
    advantages, _ = GROUPED_AND_WHITENED[kind](rewards, mask, [7, 7, 7])
    expected = torch.tensor(BY_HAND[kind], dtype=torch.float32)[:, None] * mask
    torch.testing.assert_close(advantages, expected, rtol=0, atol=2e-6)


@grouped
@CHECKED
@given(batch=batches())
def test_estimator_is_the_formula(kind: str, batch: Batch) -> None:
    rewards, _, mask = batch.tensors()
    advantages, returns = GROUPED[kind](rewards, mask, batch.index)
    assert advantages is returns
    assert advantages.dtype == batch.dtype
    per_episode = reference.grouped(kind, batch.rewards, batch.mask, batch.index)
    # Normalised results are of order 1; a difference of 1e-8 between scores of 1e8 is below float64.
    scale = 1.0 if kind in ("grpo", "pass_at_k") else largest(batch.rewards)
    tolerance = 1e-6 if batch.dtype == torch.float64 and scale == 1.0 else None
    close(advantages, reference.spread(per_episode, batch.mask), scale, tolerance)


@CHECKED
@given(batches(("few", "any", "large", "broken")))
def test_reinforce_plus_plus_baseline_is_the_formula(batch: Batch) -> None:
    rewards, _, mask = batch.tensors()
    advantages, _ = algo.compute_reinforce_plus_plus_baseline_advantage(rewards.double(), mask, batch.index)
    centred = reference.spread(reference.grouped("dr_grpo", batch.rewards, batch.mask, batch.index), batch.mask)
    close(advantages, reference.whiten(centred, reference.without_nonfinite(batch.rewards, batch.mask)), 1.0, 1e-6)


@grouped_and_whitened
@CHECKED
@given(
    constant=st.floats(-1e8, 1e8, width=32),
    size=st.integers(1, 17),
    turns=st.lists(st.integers(0, 5), min_size=17, max_size=17),
)
def test_equal_rewards_give_exactly_zero(kind: str, constant: float, size: int, turns: list[int]) -> None:
    rewards = torch.zeros(size, 6)
    rewards[torch.arange(size), torch.tensor(turns[:size])] = constant
    advantages, _ = GROUPED_AND_WHITENED[kind](rewards, torch.ones(size, 6), ["start"] * size)
    assert not advantages.any()


@grouped_and_whitened
def test_same_rewards_in_another_order_give_exactly_zero(kind: str) -> None:
    paid = torch.tensor([0.1, 0.2, 0.3, 0.7, 1.1, 1e-3])
    torch.manual_seed(0)
    rewards = torch.stack([paid[torch.randperm(6)] for _ in range(16)])
    assert not GROUPED_AND_WHITENED[kind](rewards, torch.ones(16, 6), [0] * 16)[0].any()


@grouped_and_whitened
def test_a_group_of_one_gives_exactly_zero(kind: str) -> None:
    rewards = torch.tensor([[0.0, 0.7], [0.0, -3.0], [0.0, 1e8]])
    assert not GROUPED_AND_WHITENED[kind](rewards, torch.ones(3, 2), [0, 1, 2])[0].any()


@grouped_and_whitened
@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf")])
def test_a_nonfinite_reward_takes_out_only_its_own_episode(kind: str, broken: float) -> None:
    torch.manual_seed(0)
    rewards, mask = torch.randn(8, 5), torch.rand(8, 5) < 0.7
    index = [0, 0, 0, 0, 1, 1, 2, 2]
    rewards[2, 1] = rewards[7, 4] = broken
    healthy = ~algo.nonfinite_episodes(rewards)
    assert healthy.tolist() == [True, True, False, True, True, True, True, False]
    advantages, _ = GROUPED_AND_WHITENED[kind](rewards, mask, index)
    assert not advantages[~healthy].any()
    kept = [name for name, good in zip(index, healthy.tolist(), strict=True) if good]
    torch.testing.assert_close(
        advantages[healthy], GROUPED_AND_WHITENED[kind](rewards[healthy], mask[healthy], kept)[0]
    )
    if kind in GROUPED:
        assert not advantages[6].any(), "the only one left of its group"


@grouped
def test_scores_of_1e8_keep_their_differences(kind: str) -> None:
    base = torch.tensor([[0.0], [8.0], [16.0], [24.0]])
    near, _ = GROUPED[kind](base, torch.ones(4, 1), [0] * 4)
    far, _ = GROUPED[kind](base + 1e8, torch.ones(4, 1), [0] * 4)
    torch.testing.assert_close(far, near)


def test_groups_may_be_integers_strings_or_arrays() -> None:
    rewards, mask = torch.tensor([[1.0], [2.0], [4.0], [8.0]]), torch.ones(4, 1)
    expected, _ = algo.compute_grpo_advantage(rewards, mask, ["a", "b", "a", "b"])
    names = [[7, 3, 7, 3], torch.tensor([7, 3, 7, 3]), np.array([7, 3, 7, 3]), np.array(list("abab"), dtype=object)]
    for index in names:
        assert torch.equal(algo.compute_grpo_advantage(rewards, mask, index)[0], expected)


def test_an_index_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="index has 2 entries, but the batch has 3 episodes"):
        algo.compute_grpo_advantage(torch.ones(3, 1), torch.ones(3, 1), [0, 0])


@grouped_and_whitened
def test_a_mask_of_another_shape_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match=r"response_mask is \(3, 1\), but token_level_rewards is \(3, 2\)"):
        GROUPED_AND_WHITENED[kind](torch.ones(3, 2), torch.ones(3, 1), [0, 0, 0])
    with pytest.raises(ValueError, match=r"token_level_rewards is \(3,\), but must be \(batch, time\)"):
        GROUPED_AND_WHITENED[kind](torch.ones(3), torch.ones(3), [0, 0, 0])


@grouped_and_whitened
def test_an_episode_may_be_longer_than_a_block(kind: str) -> None:
    rewards = torch.zeros(3, SERIAL + 1)
    rewards[:, -1] = torch.tensor([1.0, 2.0, 4.0])
    short, _ = GROUPED_AND_WHITENED[kind](rewards[:, -1:], torch.ones(3, 1), [0, 0, 0])
    advantages, _ = GROUPED_AND_WHITENED[kind](rewards, torch.ones_like(rewards), [0, 0, 0])
    # Over more tokens n - 1 is nearer to n, so the batch's standard deviation is smaller.
    torch.testing.assert_close(advantages[:, :1], short, rtol=0.3, atol=0.0)


@grouped_and_whitened
def test_an_empty_batch_is_fine(kind: str) -> None:
    assert GROUPED_AND_WHITENED[kind](torch.zeros(0, 4), torch.zeros(0, 4), [])[0].shape == (0, 4)


def test_a_tie_for_the_best_gives_zero() -> None:
    rewards = torch.tensor([[1.0], [1.0], [0.0]])
    assert not algo.compute_pass_at_k_advantage(rewards, torch.ones(3, 1), [0, 0, 0])[0].any()


@pytest.mark.parametrize("scale", [0.25, 1.0, 3.0])
def test_only_the_ratio_of_weights_matters(scale: float) -> None:
    scores, group = torch.tensor([1.0, 4.0, 2.0]).double(), torch.tensor([0, 0, 1])
    weights = torch.tensor([2.0, 1.0, 1.0]) * scale
    assert group_deviations(scores, group, weights).deviation.tolist() == [-1.0, 2.0, 0.0]
