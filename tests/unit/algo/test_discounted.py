"""GAE and REINFORCE++ match their formulas, token by token."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.algo import reference
from tests.unit.algo.batches import CHECKED, Batch, batches, close, largest

from turnsmith import algo
from turnsmith.algo.discounting import lambda_returns

GAMMAS = st.sampled_from([0.0, 0.5, 0.99, 1.0])
NAN, INF = float("nan"), float("inf")


@CHECKED
@given(batches(), GAMMAS, GAMMAS)
def test_gae_is_the_formula(batch: Batch, gamma: float, lam: float) -> None:
    advantages, returns = algo.compute_gae_advantage_return(*batch.tensors(), gamma, lam, whiten=False)
    expected, targets = reference.gae(batch.rewards, batch.values, batch.mask, gamma, lam)
    scale = 10 * max(largest(batch.rewards), largest(batch.values))
    close(advantages, expected, scale)
    close(returns, targets, scale)


@CHECKED
@given(batches(("few", "any", "large", "broken")), GAMMAS, GAMMAS)
def test_gae_is_whitened_over_healthy_model_tokens(batch: Batch, gamma: float, lam: float) -> None:
    batch.dtype = torch.float64
    advantages, _ = algo.compute_gae_advantage_return(*batch.tensors(), gamma, lam)
    plain, _ = reference.gae(batch.rewards, batch.values, batch.mask, gamma, lam)
    healthy = reference.without_nonfinite(batch.rewards, batch.mask)
    close(advantages, reference.whiten(plain, healthy), 1.0, 1e-6)


@CHECKED
@given(batches(), GAMMAS)
def test_reinforce_plus_plus_is_the_formula(batch: Batch, gamma: float) -> None:
    rewards, _, mask = batch.tensors()
    _, returns = algo.compute_reinforce_plus_plus_advantage(rewards, mask, gamma)
    close(returns, reference.discounted(batch.rewards, batch.mask, gamma), 10 * largest(batch.rewards))
    advantages, _ = algo.compute_reinforce_plus_plus_advantage(rewards.double(), mask, gamma)
    healthy = reference.without_nonfinite(batch.rewards, batch.mask)
    close(advantages, reference.whiten(reference.discounted(batch.rewards, batch.mask, gamma), healthy), 1.0, 1e-6)


@CHECKED
@given(batches(("any",)), st.integers(1, 5), st.integers(1, 5))
def test_blocks_of_any_size_give_the_same(batch: Batch, block_rows: int, block_columns: int) -> None:
    rewards, values, mask = batch.tensors()
    whole = lambda_returns(rewards, values, mask, 0.9, 0.8)
    parts = lambda_returns(rewards, values, mask, 0.9, 0.8, rows=block_rows, columns=block_columns)
    for from_whole, from_parts in zip(whole, parts, strict=True):
        assert torch.equal(from_whole, from_parts)


def test_more_tokens_and_episodes_than_a_block() -> None:
    torch.manual_seed(0)
    rewards, values = torch.randn(2, 2100, 150).double().unbind()
    mask = torch.rand(2100, 150) < 0.7
    advantages, _ = algo.compute_gae_advantage_return(rewards, values, mask, 0.99, 0.95, whiten=False)
    picked = [0, 2047, 2048, 2099]
    lists = [tensor[picked].tolist() for tensor in (rewards, values, mask.int())]
    close(advantages[picked], reference.gae(*lists, 0.99, 0.95)[0], 10.0)


def test_reward_on_or_after_an_observation_reaches_the_model_token_before_it() -> None:
    mask = torch.tensor([[1, 1, 0, 0, 1, 0, 0]])
    zeros = torch.zeros(1, 7)
    for place, token in ((0, 0), (1, 1), (2, 1), (3, 1), (4, 4), (5, 4), (6, 4)):
        moved, at_token = zeros.clone(), zeros.clone()
        moved[0, place] = at_token[0, token] = 3.0
        for gamma in (0.0, 0.5, 1.0):
            _, actual = algo.compute_gae_advantage_return(moved, zeros, mask, gamma, 0.9)
            _, expected = algo.compute_gae_advantage_return(at_token, zeros, mask, gamma, 0.9)
            assert torch.equal(actual, expected)
            assert actual[0, token] == 3.0


@pytest.mark.parametrize("broken", [NAN, INF, -INF])
def test_a_nonfinite_reward_takes_out_only_its_own_episode(broken: float) -> None:
    torch.manual_seed(0)
    rewards, values = torch.randn(2, 4, 6).unbind()
    mask = torch.tensor([[1, 1, 0, 1, 1, 0]]).repeat(4, 1)
    rewards[1, 5] = broken
    healthy = torch.tensor([True, False, True, True])
    assert algo.nonfinite_episodes(rewards).tolist() == (~healthy).tolist()
    advantages, returns = algo.compute_gae_advantage_return(rewards, values, mask, 0.99, 0.95)
    alone = algo.compute_gae_advantage_return(rewards[healthy], values[healthy], mask[healthy], 0.99, 0.95)
    torch.testing.assert_close(advantages[healthy], alone[0])
    torch.testing.assert_close(returns[healthy], alone[1])
    assert not advantages[1].any()
    assert torch.equal(returns[1], values[1] * mask[1])


def test_values_outside_the_mask_are_not_read() -> None:
    rewards, mask = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[1, 0, 1]])
    values = torch.tensor([[0.5, 0.0, 0.25]])
    wild = torch.tensor([[0.5, NAN, 0.25]])
    expected = algo.compute_gae_advantage_return(rewards, values, mask, 0.9, 0.8)
    actual = algo.compute_gae_advantage_return(rewards, wild, mask, 0.9, 0.8)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (2, 3)])
def test_nothing_to_train_on_gives_zeros(shape: tuple[int, int]) -> None:
    rewards, mask = torch.ones(shape), torch.zeros(shape)
    for tensor in algo.compute_gae_advantage_return(rewards, rewards, mask, 0.9, 0.8):
        assert tensor.shape == shape
        assert not tensor.any()
    assert not algo.compute_reinforce_plus_plus_advantage(rewards, mask)[0].any()


def test_one_model_token_is_whitened_to_zero() -> None:
    advantages, returns = algo.compute_gae_advantage_return(torch.ones(1, 1), torch.zeros(1, 1), torch.ones(1, 1), 1, 1)
    assert advantages.item() == 0.0
    assert returns.item() == 1.0


def test_inputs_are_not_modified() -> None:
    rewards, values, mask = (
        torch.tensor([[1.0, NAN], [1.0, 2.0]]),
        torch.tensor([[1.0, INF], [1.0, 2.0]]),
        torch.ones(2, 2),
    )
    copies = [tensor.clone() for tensor in (rewards, values, mask)]
    algo.compute_gae_advantage_return(rewards, values, mask, 0.9, 0.9)
    algo.compute_reinforce_plus_plus_advantage(rewards, mask, 0.9)
    for tensor, copy in zip((rewards, values, mask), copies, strict=True):
        torch.testing.assert_close(tensor, copy, equal_nan=True, rtol=0, atol=0)


def test_half_precision_is_computed_in_float32() -> None:
    rewards = torch.rand(2, 5).bfloat16()
    advantages, returns = algo.compute_gae_advantage_return(rewards, rewards, torch.ones(2, 5), 0.9, 0.9)
    assert advantages.dtype == returns.dtype == torch.float32


def test_tensors_of_different_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"response_mask is \(2, 1\), but token_level_rewards is \(2, 3\)"):
        algo.compute_gae_advantage_return(torch.ones(2, 3), torch.ones(2, 3), torch.ones(2, 1), 1.0, 1.0)
    with pytest.raises(ValueError, match=r"response_mask is \(2, 1\), but token_level_rewards is \(2, 3\)"):
        algo.compute_reinforce_plus_plus_advantage(torch.ones(2, 3), torch.ones(2, 1), 1.0)
