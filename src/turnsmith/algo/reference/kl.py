"""KL divergence from the reference policy: per-token estimators, and the penalty on rewards.

Reference implementation: training uses verl's `kl_penalty` and `apply_kl_penalty`, and
`tests/unit/algo/test_against_verl.py` checks that both agree.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from turnsmith.algo.shapes import require_same_shape

KLEstimator = Literal["k1", "k2", "k3", "abs"]
"""Names of the estimators."""


def kl_estimate(
    log_probs: Tensor,
    ref_log_probs: Tensor,
    estimator: KLEstimator = "k1",
    *,
    unbiased_gradient: bool = False,
    cap: float | None = 10.0,
) -> Tensor:
    """Estimate KL(pi, ref) from sampled tokens (Schulman 2020, http://joschu.net/blog/kl-approx.html).

    With x = log ref(a) - log pi(a):

        k1   -x              unbiased, high variance, may be negative
        k2   x^2 / 2         biased, never negative; its gradient is the gradient of the KL
        k3   e^x - 1 - x     unbiased, never negative
        abs  |x|

    verl computes k3 as e^x - x - 1, which in float32 is rounding noise for |x| < 1e-3 and may be negative; ours is
    exact for small x.

    Args:
        log_probs: log pi, any shape.
        ref_log_probs: log ref, same shape.
        estimator: One of the four above.
        unbiased_gradient: Keep the value but use the gradient of k2 (verl's "k3+"), because the expected gradients of
            k1 and k3 are not the gradient of the KL.
        cap: Largest value of k3, as in verl, so that a token that pi avoids cannot outweigh all others. This adds a
            bias; None for no cap.

    Returns:
        One estimate per token, same shape.

    Example:
        >>> kl_estimate(torch.tensor([-1.0, -1.0]), torch.tensor([-2.0, -1.0]), "k1")
        tensor([1., 0.])
        >>> kl_estimate(torch.tensor(-1.0), torch.tensor(-1.0001), "k3") > 0
        tensor(True)
    """
    x = ref_log_probs - log_probs
    if estimator == "k1":
        value = log_probs - ref_log_probs
    elif estimator == "k2":
        value = x.square() / 2
    elif estimator == "abs":
        value = x.abs()
    elif estimator == "k3":
        value = _k3(x.clamp(-20.0, 20.0))
        value = value if cap is None else value.clamp(max=cap)
    else:
        raise ValueError(f"unknown KL estimator {estimator!r}; use one of {', '.join(get_args(KLEstimator))}")
    if not unbiased_gradient:
        return value
    carrier = x.square() / 2
    return carrier - carrier.detach() + value.detach()


def _k3(x: Tensor) -> Tensor:
    """e^x - 1 - x, near 0 by its series: the difference would cancel."""
    series = x.square() / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5 * (1 + x / 6))))
    return torch.where(x.abs() < 0.1, series, torch.expm1(x) - x)


def apply_kl_penalty(
    token_level_rewards: Tensor,
    log_probs: Tensor,
    ref_log_probs: Tensor,
    response_mask: Tensor,
    kl_coef: float,
    estimator: KLEstimator = "k1",
) -> tuple[Tensor, float]:
    """Subtract the KL from the rewards (Ziegler et al. 2019, https://arxiv.org/abs/1909.08593).

        r'_t = r_t - kl_coef KL_t   on model tokens; other rewards are unchanged

    Args:
        token_level_rewards: r `(batch, time)`.
        log_probs: log pi `(batch, time)`, of the policy that sampled the episodes.
        ref_log_probs: log ref `(batch, time)`.
        response_mask: `(batch, time)`, 1 on model tokens; log-probs of other tokens are ignored.
        kl_coef: Coefficient, such as `KLController.value`.
        estimator: See `kl_estimate`.

    Returns:
        The penalised rewards `(batch, time)`, and the KL: the mean over each episode's tokens, averaged over episodes
        that have a model token (verl counts those that have none as 0).

    Example:
        >>> rewards, mask = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[1, 0, 1]])
        >>> apply_kl_penalty(rewards, torch.zeros(1, 3), torch.full((1, 3), -0.5), mask, kl_coef=0.5)
        (tensor([[-0.2500,  0.0000,  0.7500]]), 0.5)
    """
    require_same_shape(
        token_level_rewards=token_level_rewards,
        log_probs=log_probs,
        ref_log_probs=ref_log_probs,
        response_mask=response_mask,
    )
    with torch.no_grad():
        on = response_mask != 0
        kl = kl_estimate(log_probs, ref_log_probs, estimator).where(on, 0.0)
        lengths = on.sum(dim=-1)
        mean = kl.sum(dim=-1, dtype=torch.float64) / lengths.clamp(min=1)
        value = float(mean.sum()) / max(int(torch.count_nonzero(lengths)), 1)
        return token_level_rewards - kl_coef * kl, value
