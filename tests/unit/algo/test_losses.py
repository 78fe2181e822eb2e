"""Losses, KL and the controller match their formulas, and gradients stay finite and inside the mask."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.algo import reference
from tests.unit.algo.batches import CHECKED, close, rows

from turnsmith import algo

MODES = get_args(algo.Aggregation)
NUMBERS = st.floats(-3, 3, width=32)


@st.composite
def three_and_mask(draw: st.DrawFn) -> tuple[list, list, list, list]:
    episodes, tokens = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    numbers = [rows(draw, NUMBERS, episodes, tokens) for _ in range(3)]
    return (*numbers, rows(draw, st.integers(0, 1), episodes, tokens))  # type: ignore[return-value]


def per_token(function: Callable[..., float], *grids: list) -> list[list[float]]:
    return [[function(*cell) for cell in zip(*cells, strict=True)] for cells in zip(*grids, strict=True)]


def tensors(*grids: list) -> list[torch.Tensor]:
    return [torch.tensor(grid, dtype=torch.float64) for grid in grids]


@pytest.mark.parametrize("mode", MODES)
@CHECKED
@given(data=three_and_mask())
def test_aggregation_is_the_formula(mode: algo.Aggregation, data: tuple) -> None:
    loss, _, _, mask = data
    result = algo.aggregate_loss(torch.tensor(loss).double(), torch.tensor(mask), mode)
    close(result, reference.aggregate(loss, mask, mode))  # type: ignore[arg-type]


def test_an_unknown_aggregation_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown aggregation 'mean'; use one of token-mean"):
        algo.aggregate_loss(torch.ones(1, 1), torch.ones(1, 1), "mean")  # type: ignore[arg-type]


@CHECKED
@given(three_and_mask(), st.sampled_from([0.1, 0.2]), st.sampled_from([0.2, 0.4]), st.sampled_from([None, 3.0, 1.5]))
def test_policy_loss_is_the_formula(data: tuple, low: float, high: float, dual: float | None) -> None:
    old, new, advantages, mask = data
    loss, metrics = algo.compute_policy_loss(
        *tensors(old, new, advantages, mask), clip_ratio_low=low, clip_ratio_high=high, dual_clip=dual
    )
    tokens = per_token(lambda o, n, a: reference.ppo_token(o, n, a, low, high, dual), old, new, advantages)
    close(loss, reference.aggregate(tokens, mask, "token-mean"), 50.0)  # type: ignore[arg-type]
    drift = per_token(lambda o, n: o - n, old, new)
    assert metrics["kl"] == pytest.approx(reference.aggregate(drift, mask, "token-mean"), abs=1e-5)
    assert 0 <= metrics["clip_fraction"] <= 1


@CHECKED
@given(three_and_mask(), st.sampled_from([None, 0.5]))
def test_value_loss_is_the_formula(data: tuple, clip: float | None) -> None:
    value, target, old, mask = data
    loss, metrics = algo.compute_value_loss(*tensors(value, target, old, mask), cliprange_value=clip)
    tokens = per_token(lambda v, r, o: reference.value_token(v, r, o, clip), value, target, old)
    close(loss, reference.aggregate(tokens, mask, "token-mean"), 50.0)  # type: ignore[arg-type]
    assert metrics["value"] == pytest.approx(reference.aggregate(value, mask, "token-mean"), abs=1e-5)


def test_policy_gradient_at_the_old_policy() -> None:
    """Where new and old agree, the policy loss has the gradient of -A log pi, over the model tokens."""
    advantages, mask = torch.tensor([[1.0, -2.0, 5.0]]), torch.tensor([[1, 1, 0]])
    old = torch.tensor([[-1.0, -2.0, float("nan")]])
    new = old.clone().requires_grad_()
    loss, _ = algo.compute_policy_loss(old, new, advantages, mask)
    loss.backward()
    assert torch.isfinite(loss)
    torch.testing.assert_close(new.grad, torch.tensor([[-0.5, 1.0, 0.0]]))


def test_a_batch_without_model_tokens_gives_zero_and_no_gradient() -> None:
    new = torch.full((1, 2), float("nan"), requires_grad=True)
    loss, metrics = algo.compute_policy_loss(new.detach(), new, new.detach(), torch.zeros(1, 2))
    loss.backward()
    assert loss.item() == 0.0
    assert new.grad is not None
    assert not new.grad.any()
    assert set(metrics.values()) == {0.0}


def test_clip_higher_and_dual_clip_stop_the_gradient_where_they_should() -> None:
    def gradient(log_ratio: float, advantage: float, **options: float) -> float:
        new = torch.tensor([[log_ratio]], requires_grad=True)
        algo.compute_policy_loss(torch.zeros(1, 1), new, torch.tensor([[advantage]]), torch.ones(1, 1), **options)[
            0
        ].backward()
        assert new.grad is not None
        return new.grad.item()

    assert gradient(math.log(1.25), 1.0) == 0
    assert gradient(math.log(1.25), 1.0, clip_ratio_high=0.28) == pytest.approx(-1.25)
    assert gradient(math.log(2.0), -1.0) == pytest.approx(2.0)
    assert gradient(math.log(4.0), -1.0) == 0
    with pytest.raises(ValueError, match=r"dual_clip is 1\.0"):
        gradient(0.0, 1.0, dual_clip=1.0)


def test_the_log_ratio_is_clamped_so_that_no_exponential_overflows() -> None:
    """With a clip range this wide the loss shows the ratio itself."""
    ones, wide = torch.ones(1, 1).double(), {"clip_ratio_low": 1.0, "clip_ratio_high": 1e30}
    for log_ratio, clamped in ((19.5, 19.5), (25.0, 20.0), (1000.0, 20.0), (-19.5, -19.5), (-25.0, -20.0)):
        loss, _ = algo.compute_policy_loss(0 * ones, log_ratio * ones, ones, ones, **wide)
        assert loss.item() == pytest.approx(-math.exp(clamped), rel=1e-9, abs=0)


@pytest.mark.parametrize("function", [algo.compute_policy_loss, algo.compute_value_loss, algo.apply_kl_penalty])
def test_a_mask_of_another_shape_is_refused(function: Callable) -> None:
    ones = torch.ones(2, 3)
    with pytest.raises(ValueError, match=r"response_mask is \(2, 1\)"):
        function(ones, ones, ones, torch.ones(2, 1), 0.1)
    with pytest.raises(ValueError, match=r"is \(2, 1\), but \w+ is \(2, 3\)"):
        function(ones, ones, torch.ones(2, 1), ones, 0.1)


def test_the_fractions_count_the_tokens_on_a_clipped_branch() -> None:
    """Of four model tokens one is clipped, one dual-clipped; a fifth would be both, but is not the model's."""
    log_ratio = torch.tensor([[0.0, 2.0, 2.0, -2.0, 2.0]])
    advantages, mask = torch.tensor([[-1.0, 1.0, -1.0, 1.0, -1.0]]), torch.tensor([[1, 1, 1, 1, 0]])
    _, metrics = algo.compute_policy_loss(torch.zeros(1, 5), log_ratio, advantages, mask)
    assert metrics == {"clip_fraction": 0.25, "kl": -0.5, "dual_clip_fraction": 0.25}
    assert (
        "dual_clip_fraction" not in algo.compute_policy_loss(log_ratio, log_ratio, advantages, mask, dual_clip=None)[1]
    )


@CHECKED
@given(st.lists(st.tuples(st.floats(-6, 0, width=32), st.floats(-6, 0, width=32)), min_size=1, max_size=8))
def test_kl_estimators_are_the_formula(pairs: list[tuple[float, float]]) -> None:
    log_probs, ref = torch.tensor(pairs).unbind(-1)
    drift = [float(r) - float(p) for p, r in pairs]
    exact = {"k1": lambda x: -x, "k2": lambda x: x * x / 2, "k3": lambda x: math.expm1(x) - x, "abs": abs}
    for name, formula in exact.items():
        value = algo.kl_estimate(log_probs.double(), ref.double(), name, cap=None)  # type: ignore[arg-type]
        close(value, [formula(x) for x in drift], 1e3)
    capped = algo.kl_estimate(log_probs, ref, "k3")
    assert bool(((capped >= 0) & (capped <= 10)).all())


@pytest.mark.parametrize("drift", [1e-6, 1e-4, 1e-2, 0.09, 0.11, -1e-5, -0.05])
def test_k3_is_exact_for_small_drift_in_float32(drift: float) -> None:
    ref, zero = torch.tensor(drift), torch.tensor(0.0)
    exact = math.fsum([float(ref) ** n / math.factorial(n) for n in range(2, 12)])
    assert algo.kl_estimate(zero, ref, "k3").item() == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("drift", [0.1, -0.1, 0.11])
def test_k3_is_the_formula_where_its_series_ends(drift: float) -> None:
    value = algo.kl_estimate(torch.zeros((), dtype=torch.float64), torch.tensor(drift, dtype=torch.float64), "k3")
    assert value.item() == pytest.approx(math.expm1(drift) - drift, rel=1e-12)


@pytest.mark.parametrize("drift", [0.09, -0.09])
def test_every_term_of_the_series_for_k3_counts(drift: float) -> None:
    exact = math.fsum([drift**n / math.factorial(n) for n in range(2, 16)])
    value = algo.kl_estimate(torch.zeros((), dtype=torch.float64), torch.tensor(drift, dtype=torch.float64), "k3")
    assert value.item() == pytest.approx(exact, rel=8e-9)


@pytest.mark.parametrize("name", ["k1", "k2", "k3", "abs"])
def test_unbiased_gradient_is_the_one_of_k2(name: algo.KLEstimator) -> None:
    log_probs = torch.tensor([-1.0, -2.0], requires_grad=True)
    value = algo.kl_estimate(log_probs, torch.tensor([-1.5, -1.0]), name, unbiased_gradient=True)
    torch.testing.assert_close(value, algo.kl_estimate(log_probs, torch.tensor([-1.5, -1.0]), name))
    value.sum().backward()
    torch.testing.assert_close(log_probs.grad, torch.tensor([0.5, -1.0]))


def test_k3_and_k1_estimate_the_same_kl() -> None:
    policy, ref = torch.tensor([0.5, 0.3, 0.2]).double().log(), torch.tensor([0.2, 0.3, 0.5]).double().log()
    exact = (policy.exp() * (policy - ref)).sum()
    for name in ("k1", "k3"):
        torch.testing.assert_close((policy.exp() * algo.kl_estimate(policy, ref, name)).sum(), exact)


@CHECKED
@given(three_and_mask(), st.sampled_from([0.0, 0.01, 1.0]))
def test_kl_penalty_is_the_formula(data: tuple, coefficient: float) -> None:
    rewards, log_probs, ref, mask = data
    penalised, kl = algo.apply_kl_penalty(*tensors(rewards, log_probs, ref, mask), kl_coef=coefficient)
    expected = per_token(lambda r, p, q, m: r - coefficient * (p - q) * m, rewards, log_probs, ref, mask)
    close(penalised, expected, 10.0)
    drift = per_token(lambda p, q: p - q, log_probs, ref)
    assert kl == pytest.approx(reference.aggregate(drift, mask, "seq-mean-token-mean"), abs=1e-9)


def test_kl_penalty_reads_no_log_prob_outside_the_mask() -> None:
    wild = torch.tensor([[0.0, float("nan")]])
    penalised, kl = algo.apply_kl_penalty(torch.ones(1, 2), wild, wild, torch.tensor([[1, 0]]), 0.5)
    assert penalised.tolist() == [[1.0, 1.0]]
    assert kl == 0.0
    with pytest.raises(ValueError, match="unknown KL estimator 'k4'"):
        algo.kl_estimate(wild, wild, "k4")  # type: ignore[arg-type]


def test_fixed_controller_stays() -> None:
    controller = algo.KLController(init_kl_coef=0.01, target_kl=0.01, adaptive=False)
    controller.update(current_kl=5.0, n_steps=1024)
    assert controller.value == 0.01


@CHECKED
@given(st.floats(0, 100), st.integers(0, 10**7))
def test_adaptive_controller_moves_towards_its_target_and_stays_positive(kl: float, steps: int) -> None:
    controller = algo.KLController(init_kl_coef=0.01, target_kl=0.1, adaptive=True)
    controller.update(current_kl=kl, n_steps=steps)
    error = min(max(kl / 0.1 - 1, -0.2), 0.2)
    assert controller.value == pytest.approx(0.01 * (1 + error * min(steps / 10_000, 1)))
    assert controller.value > 0


def test_the_default_controller_holds_a_kl_of_a_tenth_over_ten_thousand_episodes() -> None:
    controller = algo.KLController(1.0, adaptive=True)
    controller.update(current_kl=0.1, n_steps=10_000)
    assert controller.value == 1.0
    controller.update(current_kl=0.11, n_steps=5_000)
    assert controller.value == pytest.approx(1 + 0.1 / 2)
    assert not algo.KLController(1.0).adaptive


@pytest.mark.parametrize(("target", "horizon"), [(0.0, 1.0), (-0.5, 1.0), (1.0, 0.0), (1.0, -0.5), (math.nan, 1.0)])
def test_an_adaptive_controller_needs_a_target_and_a_horizon(target: float, horizon: float) -> None:
    with pytest.raises(ValueError, match="of an adaptive controller must be positive"):
        algo.KLController(0.1, target, adaptive=True, horizon=horizon)
    assert algo.KLController(0.1, target, horizon=horizon).value == 0.1


def test_value_loss_reads_nothing_outside_the_mask() -> None:
    value = torch.tensor([[1.0, math.nan]], requires_grad=True)
    others = torch.tensor([[0.0, math.inf]])
    loss, metrics = algo.compute_value_loss(value, others, others, torch.tensor([[1, 0]]), cliprange_value=0.5)
    loss.backward()
    assert loss.item() == 0.5
    assert value.grad is not None
    assert value.grad.tolist() == [[1.0, 0.0]]
    assert metrics["value"] == 1.0


def test_a_nan_kl_leaves_the_controller_as_it_is() -> None:
    controller = algo.KLController(0.01, 0.1, adaptive=True)
    controller.update(current_kl=float("nan"), n_steps=10)
    assert controller.value == 0.01
    with pytest.raises(ValueError, match=r"target_kl \(0\)"):
        algo.KLController(0.01, 0, adaptive=True)


def test_k3_of_policies_that_are_far_apart_is_that_of_a_ratio_of_e_to_the_twentieth() -> None:
    for far, near in ((25.0, 20.0), (-25.0, -20.0)):
        values = [algo.kl_estimate(torch.tensor(0.0), torch.tensor(x), "k3", cap=None) for x in (far, near)]
        assert values[0] == values[1]
        assert values[1] == pytest.approx(math.exp(near) - near - 1)


def test_the_gradient_of_a_kl_estimate_is_its_own_unless_asked_for() -> None:
    log_probs = torch.tensor([-1.0, -2.0], requires_grad=True)
    algo.kl_estimate(log_probs, torch.tensor([-1.5, -1.0]), "k1").sum().backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [1.0, 1.0]
