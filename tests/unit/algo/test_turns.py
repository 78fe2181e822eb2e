"""Turn-level estimators match their formulas."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.algo import reference
from tests.unit.algo.batches import CHECKED, Batch, batches, close, largest
from torch import Tensor

from turnsmith import algo
from turnsmith.algo.turns import find_turns

GAMMAS = st.sampled_from([0.0, 0.3, 0.9, 1.0])
NAN, INF = float("nan"), float("inf")


def gigpo(rewards: Tensor, mask: Tensor, index: object, normalize: bool = True) -> tuple[Tensor, Tensor]:
    """Every k-th turn of the group starts from the same observation."""
    anchors = (torch.diff(mask.long(), prepend=torch.zeros(len(mask), 1, dtype=torch.long)) > 0).cumsum(dim=1)
    return algo.compute_gigpo_advantage(rewards, mask, index, anchors, 0.9, normalize=normalize)  # type: ignore[arg-type]


Estimator = Callable[[Tensor, Tensor, object], tuple[Tensor, Tensor]]
ESTIMATORS: dict[str, Estimator] = {
    "turns": lambda r, m, i: algo.compute_turn_return_advantage(r, m, i, 0.9),  # type: ignore[arg-type]
    "turns by group": lambda r, m, i: algo.compute_turn_return_advantage(r, m, i, 0.9, scale="group"),  # type: ignore[arg-type]
    "turns by batch": lambda r, m, i: algo.compute_turn_return_advantage(r, m, i, 0.9, scale="batch"),  # type: ignore[arg-type]
    "gigpo": gigpo,
    "gigpo without std": lambda r, m, i: gigpo(r, m, i, normalize=False),
}
every = pytest.mark.parametrize("kind", ESTIMATORS)


@CHECKED
@given(batches(), GAMMAS)
def test_turn_return_is_the_formula(batch: Batch, gamma: float) -> None:
    rewards, _, mask = batch.tensors()
    advantages, returns = algo.compute_turn_return_advantage(rewards, mask, batch.index, gamma)
    assert advantages.dtype == returns.dtype == batch.dtype
    expected = reference.turn_returns(batch.rewards, batch.mask, gamma)
    deviations = reference.turn_deviations(expected, batch.index)
    close(returns, reference.spread_turns(expected, batch.mask), 10 * largest(batch.rewards))
    close(advantages, reference.spread_turns(deviations, batch.mask), 10 * largest(batch.rewards))
    for scale, index in (("group", batch.index), ("batch", ["all"] * len(batch.index))):
        scaled, _ = algo.compute_turn_return_advantage(rewards, mask, batch.index, gamma, scale=scale)
        # Normalised results are of order 1; a difference of 1e-8 between scores of 1e8 is below float64.
        close(scaled, reference.spread_turns(reference.turn_scaled(deviations, index), batch.mask), 1.0, 5e-6)


@CHECKED
@given(batches(), GAMMAS, GAMMAS)
def test_turn_gae_is_the_formula(batch: Batch, gamma: float, lam: float) -> None:
    rewards, values, mask = batch.tensors()
    advantages, returns = algo.compute_turn_gae_advantage_return(rewards, values, mask, gamma, lam, whiten=False)
    expected, targets = reference.turn_gae(batch.rewards, batch.values, batch.mask, gamma, lam)
    scale = 10 * max(largest(batch.rewards), largest(batch.values))
    close(advantages, reference.spread_turns(expected, batch.mask), scale)
    healthy = [reference.finite(row) for row in batch.rewards]
    wanted = reference.spread_turns(targets, batch.mask)
    kept = [[v * on for v, on in zip(*pair, strict=True)] for pair in zip(batch.values, batch.mask, strict=True)]
    close(returns, [row if good else own for row, own, good in zip(wanted, kept, healthy, strict=True)], scale)


@CHECKED
@given(batches(("few", "any", "large", "broken")), GAMMAS, GAMMAS)
def test_turn_gae_is_whitened_over_healthy_model_tokens(batch: Batch, gamma: float, lam: float) -> None:
    batch.dtype = torch.float64
    advantages, _ = algo.compute_turn_gae_advantage_return(*batch.tensors(), gamma, lam)
    plain = reference.spread_turns(
        reference.turn_gae(batch.rewards, batch.values, batch.mask, gamma, lam)[0], batch.mask
    )
    close(advantages, reference.whiten(plain, reference.without_nonfinite(batch.rewards, batch.mask)), 1.0, 1e-6)


@CHECKED
@given(batches(), GAMMAS, st.data(), st.booleans(), st.sampled_from([0.0, 1.0, 2.5]))
def test_gigpo_is_the_formula(batch: Batch, gamma: float, data: st.DataObject, normalize: bool, weight: float) -> None:
    rewards, _, mask = batch.tensors()
    name = st.sampled_from([0, -1, 2**62])
    anchors = [data.draw(st.lists(name, min_size=len(row), max_size=len(row))) for row in batch.mask]
    advantages, returns = algo.compute_gigpo_advantage(
        rewards, mask, batch.index, torch.tensor(anchors), gamma, step_weight=weight, normalize=normalize
    )
    assert advantages is returns
    expected = reference.gigpo(batch.rewards, batch.mask, batch.index, anchors, gamma, weight, normalize)
    scale = 1.0 if normalize else 10 * largest(batch.rewards)
    close(advantages, reference.spread_turns(expected, batch.mask), scale, 5e-6 if normalize else None)


@every
@settings(CHECKED, max_examples=15)
@given(
    constant=st.floats(-1e8, 1e8, width=32),
    size=st.integers(1, 17),
    places=st.lists(st.integers(0, 2), min_size=17, max_size=17),
)
def test_equal_rewards_give_exactly_zero(kind: str, constant: float, size: int, places: list[int]) -> None:
    rewards = torch.zeros(size, 6)
    rewards[torch.arange(size), torch.tensor(places[:size])] = constant  # in the turn or on the observation after it
    rewards[:, 4] = constant / 3
    mask = torch.tensor([[1, 1, 0, 1, 1, 1]]).repeat(size, 1)
    assert not ESTIMATORS[kind](rewards, mask, ["start"] * size)[0].any()


@pytest.mark.parametrize("size", [7, 513, 1030])
def test_equal_rewards_give_exactly_zero_in_every_part_of_a_large_batch(size: int) -> None:
    torch.manual_seed(0)
    rewards, mask = torch.randn(1, 40).repeat(size, 1), (torch.rand(1, 40) < 0.5).repeat(size, 1)
    for gamma in torch.rand(5).tolist():
        assert not algo.compute_turn_return_advantage(rewards, mask, [0] * size, gamma)[0].any()


def test_equal_last_rewards_give_exactly_zero_however_long_the_episodes_are() -> None:
    mask = torch.tensor([[1, 0, 0, 0, 0], [1, 0, 1, 0, 0], [1, 0, 1, 0, 1]])
    rewards = torch.tensor([[0.1, 0, 0, 0, 0], [0, 0, 0.1, 0, 0], [0, 0, 0, 0, 0.1]])
    assert not algo.compute_turn_return_advantage(rewards, mask, [0, 0, 0], 1.0)[0].any()


def test_lone_turns_equal_to_the_others_last_turns_give_exactly_zero_whatever_came_before() -> None:
    """Turn 2 of the last episode is compared with three last turns of the same return, and with nothing else."""
    mask = torch.tensor([[1, 0, 0], [1, 0, 0], [1, 0, 0], [1, 0, 1]])
    for early in torch.linspace(-3, 3, 41).tolist():
        rewards = torch.tensor([[0.1, 0, 0], [0.1, 0, 0], [0.1, 0, 0], [early, 0, 0.1]])
        advantages, _ = algo.compute_turn_return_advantage(rewards, mask, [0] * 4, 1.0)
        assert advantages[3, 2] == 0


@every
def test_a_group_of_one_gives_exactly_zero(kind: str) -> None:
    rewards, mask = torch.randn(3, 5), torch.tensor([[1, 1, 0, 1, 0]]).repeat(3, 1)
    assert not ESTIMATORS[kind](rewards, mask, [0, 1, 2])[0].any()


def test_an_anchor_group_of_one_leaves_the_episode_term() -> None:
    rewards, mask = torch.randn(4, 5), torch.tensor([[1, 1, 0, 1, 0]]).repeat(4, 1)
    different = torch.arange(20).view(4, 5)
    advantages, _ = algo.compute_gigpo_advantage(rewards, mask, [0, 0, 1, 1], different, 0.9)
    torch.testing.assert_close(advantages, algo.compute_grpo_advantage(rewards, mask, [0, 0, 1, 1])[0])


def test_anchors_are_compared_within_a_group_only() -> None:
    rewards, mask, anchors = torch.randn(4, 1), torch.ones(4, 1), torch.zeros(4, 1, dtype=torch.long)
    together, _ = algo.compute_gigpo_advantage(rewards, mask, [0, 1, 0, 1], anchors, 1.0)
    torch.testing.assert_close(together, 2 * algo.compute_grpo_advantage(rewards, mask, [0, 1, 0, 1])[0])


def test_anchors_of_two_groups_stay_apart_in_a_very_large_batch() -> None:
    turns = 8_000  # float32 does not tell 8,000 from 8,000.00006
    rewards, mask, anchors = torch.zeros(2, 2 * turns), torch.zeros(2, 2 * turns), torch.zeros(2, 2 * turns)
    mask[:, ::2], anchors[:, ::2], rewards[0, -2] = 1, torch.arange(turns), 1.0
    assert not algo.compute_gigpo_advantage(rewards, mask, [0, 1], anchors.long(), 1.0)[0].any()


def test_episodes_of_one_turn_are_rloo_and_grpo() -> None:
    torch.manual_seed(0)
    rewards, mask, index = torch.randn(6, 4), torch.ones(6, 4), [0, 0, 0, 1, 1, 2]
    plain, _ = algo.compute_turn_return_advantage(rewards, mask, index, 0.5)
    torch.testing.assert_close(plain, algo.compute_rloo_advantage(rewards, mask, index)[0])
    scaled, _ = algo.compute_turn_return_advantage(rewards, mask, index, 0.5, scale="group")
    torch.testing.assert_close(scaled, algo.compute_grpo_advantage(rewards, mask, index)[0], rtol=1e-5, atol=1e-5)


@every
@pytest.mark.parametrize("broken", [NAN, INF, -INF])
@pytest.mark.parametrize("place", [0, 1, 4])
def test_a_nonfinite_reward_takes_out_only_its_own_episode(kind: str, broken: float, place: int) -> None:
    torch.manual_seed(0)
    rewards, mask = torch.randn(8, 5), torch.rand(8, 5) < 0.7
    mask[:, 0] = False  # a reward before the first turn belongs to no turn, but a NaN there takes out the episode
    index = [0, 0, 0, 0, 1, 1, 2, 2]
    rewards[2, place] = rewards[7, 4] = broken
    healthy = ~algo.nonfinite_episodes(rewards)
    advantages, returns = ESTIMATORS[kind](rewards, mask, index)
    assert not advantages[~healthy].any()
    assert not returns[~healthy].any()
    kept = [name for name, good in zip(index, healthy.tolist(), strict=True) if good]
    for all_of_them, alone in zip(
        (advantages, returns), ESTIMATORS[kind](rewards[healthy], mask[healthy], kept), strict=True
    ):
        torch.testing.assert_close(all_of_them[healthy], alone)
    assert not advantages[6].any(), "the only one left of its group"


def test_a_nonfinite_reward_leaves_the_values_as_critic_targets() -> None:
    torch.manual_seed(0)
    rewards, values = torch.randn(2, 3, 6).unbind()
    mask = torch.tensor([[1, 1, 0, 1, 1, 0]]).repeat(3, 1)
    rewards[1, 2] = NAN
    advantages, returns = algo.compute_turn_gae_advantage_return(rewards, values, mask, 0.9, 0.9)
    assert not advantages[1].any()
    assert torch.equal(returns[1], values[1] * mask[1])
    alone = algo.compute_turn_gae_advantage_return(rewards[::2], values[::2], mask[::2], 0.9, 0.9)
    torch.testing.assert_close((advantages[::2], returns[::2]), alone)


def test_values_are_read_at_the_first_token_of_a_turn_only() -> None:
    rewards, mask = torch.tensor([[0.0, 0.0, 1.0, 2.0, 0.0]]), torch.tensor([[0, 1, 1, 0, 1]])
    expected = algo.compute_turn_gae_advantage_return(rewards, torch.full((1, 5), 0.5), mask, 0.9, 0.8)
    wild = torch.tensor([[NAN, 0.5, INF, NAN, 0.5]])
    torch.testing.assert_close(
        algo.compute_turn_gae_advantage_return(rewards, wild, mask, 0.9, 0.8), expected, rtol=0, atol=0
    )


def test_one_token_a_turn_is_gae_over_tokens() -> None:
    torch.manual_seed(0)
    rewards, values = torch.randn(2, 5, 8).double().unbind()
    mask = torch.tensor([[1, 0, 1, 0, 0, 1, 0, 1]]).repeat(5, 1)
    torch.testing.assert_close(
        algo.compute_turn_gae_advantage_return(rewards, values, mask, 0.9, 0.8),
        algo.compute_gae_advantage_return(rewards, values, mask, 0.9, 0.8),
    )


def test_turns_are_found_wherever_they_lie() -> None:
    torch.manual_seed(0)
    rows, time = 20, 300
    mask = torch.rand(rows, time) < 0.6
    numbers = torch.randn(rows, time)
    turns = find_turns(mask)
    spans = [reference.turn_spans(row) for row in mask.int().tolist()]
    assert turns.exists.sum(dim=1).tolist() == [len(row) for row in spans]
    first = turns.first(numbers)
    assert [row[on].tolist() for row, on in zip(first, turns.exists, strict=True)] == [
        [numbers[i, a].item() for a, _ in row] for i, row in enumerate(spans)
    ]
    ids = torch.arange(turns.exists.numel()).view(turns.exists.shape)
    wanted = reference.spread_turns([ids[i, : len(row)].tolist() for i, row in enumerate(spans)], mask.int().tolist())
    assert torch.equal(turns.to_tokens(ids, torch.float64), torch.tensor(wanted, dtype=torch.float64))
    after_first = [row[0][0] if row else time for row in spans]
    total = torch.stack([row[start:].double().sum() for row, start in zip(numbers, after_first, strict=True)])
    torch.testing.assert_close(turns.sum(numbers).sum(dim=1), total)


def test_a_transposed_mask_gives_the_same() -> None:
    torch.manual_seed(0)
    rewards, mask = torch.randn(6, 9), torch.rand(6, 9) < 0.6
    turned = mask.T.contiguous().T
    for estimator in ESTIMATORS.values():
        expected = estimator(rewards, mask, [0] * 6)
        torch.testing.assert_close(estimator(rewards.T.contiguous().T, turned, [0] * 6), expected, rtol=0, atol=0)


@every
@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (2, 3)])
def test_nothing_to_train_on_gives_zeros(kind: str, shape: tuple[int, int]) -> None:
    for tensor in ESTIMATORS[kind](torch.ones(shape), torch.zeros(shape), [0] * shape[0]):
        assert tensor.shape == shape
        assert not tensor.any()
    for tensor in algo.compute_turn_gae_advantage_return(
        torch.ones(shape), torch.ones(shape), torch.zeros(shape), 0.9, 0.8
    ):
        assert tensor.shape == shape
        assert not tensor.any()


@every
def test_inputs_are_not_modified(kind: str) -> None:
    rewards, mask = torch.tensor([[1.0, NAN], [1.0, 2.0], [0.0, 1.0]]), torch.ones(3, 2)
    copies = rewards.clone(), mask.clone()
    ESTIMATORS[kind](rewards, mask, [0, 0, 0])
    torch.testing.assert_close((rewards, mask), copies, equal_nan=True, rtol=0, atol=0)


@every
def test_a_mask_of_another_shape_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match=r"response_mask is \(3, 1\), but token_level_rewards is \(3, 2\)"):
        ESTIMATORS[kind](torch.ones(3, 2), torch.ones(3, 1), [0, 0, 0])


def test_mismatched_inputs_are_refused() -> None:
    ones = torch.ones(3, 2)
    with pytest.raises(ValueError, match="index has 2 entries, but the batch has 3 episodes"):
        algo.compute_turn_return_advantage(ones, ones, [0, 0], 1.0)
    with pytest.raises(ValueError, match="unknown scale 'std'; use one of none, group, batch"):
        algo.compute_turn_return_advantage(ones, ones, [0, 0, 0], 1.0, scale="std")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"anchors is \(3, 1\), but token_level_rewards is \(3, 2\)"):
        algo.compute_gigpo_advantage(ones, ones, [0, 0, 0], torch.zeros(3, 1), 1.0)
