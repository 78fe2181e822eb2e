"""PPO's clipped policy loss, with clip-higher and dual clip."""

from __future__ import annotations

import torch
from torch import Tensor

from turnsmith.algo.aggregation import Aggregation, BatchTotals, aggregate_loss, masked_mean
from turnsmith.algo.shapes import require_same_shape


def compute_policy_loss(
    old_log_probs: Tensor,
    log_probs: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    clip_ratio: float = 0.2,
    *,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    dual_clip: float | None = 3.0,
    aggregation: Aggregation = "token-mean",
    weights: Tensor | None = None,
    totals: BatchTotals | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """PPO (Schulman et al. 2017, https://arxiv.org/abs/1707.06347).

    With the ratio w_t = exp(log pi(a_t) - log pi_old(a_t)):

        l_t = max(-w_t A_t, -clip(w_t, 1 - low, 1 + high) A_t)
        l_t = min(l_t, -c A_t)   where A_t < 0

    A high above low is clip-higher (DAPO, Yu et al. 2025, https://arxiv.org/abs/2503.14476): unlikely tokens may grow.
    The second line is dual clip (Ye et al. 2020, https://arxiv.org/abs/1912.09729): a bad token that became much more
    likely must not give a gradient without bound.
    The log-ratio is kept within 20 of 0, as in verl, so that no exponential overflows.

    Args:
        old_log_probs: log pi_old `(batch, time)`.
        log_probs: log pi `(batch, time)`; the gradient goes here.
        advantages: A `(batch, time)`.
        response_mask: `(batch, time)`, 1 on model tokens. What the others hold is not read.
        clip_ratio: low and high, unless these are given.
        clip_ratio_low: low.
        clip_ratio_high: high.
        dual_clip: c, larger than 1; None for plain PPO.
        aggregation: How token losses are averaged, see `aggregate_loss`.
        weights: `(batch, time)`, multiplied into l, as for a difference between the engine and the trainer.
        totals: Numbers of the whole batch, if this is a part of it.

    Returns:
        The loss, and the metrics `clip_fraction` and `dual_clip_fraction` (tokens where the clipped branch was taken)
        and `kl` (mean of log pi_old - log pi).

    Example:
        >>> old, new = torch.zeros(1, 2), torch.tensor([[0.0, 1.0]])
        >>> loss, metrics = compute_policy_loss(old, new, torch.ones(1, 2), torch.ones(1, 2), clip_ratio=0.2)
        >>> loss, metrics["clip_fraction"]  # the second token's ratio is e, clipped to 1.2
        (tensor(-1.1000), 0.5)
    """
    if dual_clip is not None and dual_clip <= 1:
        raise ValueError(f"dual_clip is {dual_clip}, but must be larger than 1")
    low = clip_ratio if clip_ratio_low is None else clip_ratio_low
    high = clip_ratio if clip_ratio_high is None else clip_ratio_high
    log_ratio, advantages = masked_log_ratio(old_log_probs, log_probs, advantages, response_mask)
    ratio = log_ratio.clamp(-20.0, 20.0).exp()
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - low, 1 + high)
    loss = torch.maximum(plain, clipped)
    metrics = {"clip_fraction": clipped > plain, "kl": -log_ratio.detach()}
    if dual_clip is not None:
        bound = -advantages * dual_clip
        metrics["dual_clip_fraction"] = (loss > bound) & (advantages < 0)
        loss = torch.where(advantages < 0, torch.minimum(loss, bound), loss)
    if weights is not None:
        loss = loss * weights
    return aggregate_loss(loss, response_mask, aggregation, totals), token_metrics(metrics, response_mask)


def masked_log_ratio(
    old_log_probs: Tensor, log_probs: Tensor, advantages: Tensor, response_mask: Tensor
) -> tuple[Tensor, Tensor]:
    """log pi - log pi_old, and the advantages; both 0 outside the mask, so that a NaN there reaches no gradient.

    Example:
        >>> nan = torch.full((1, 1), float("nan"))
        >>> masked_log_ratio(nan, nan, nan, torch.zeros(1, 1))
        (tensor([[0.]]), tensor([[0.]]))
    """
    require_same_shape(
        log_probs=log_probs, old_log_probs=old_log_probs, advantages=advantages, response_mask=response_mask
    )
    on = response_mask != 0
    return (log_probs - old_log_probs).where(on, 0.0), advantages.where(on, 0.0)


def token_metrics(metrics: dict[str, Tensor], response_mask: Tensor) -> dict[str, float]:
    """Mean of each over the model tokens.

    Example:
        >>> token_metrics({"clip_fraction": torch.tensor([[True, False, True]])}, torch.tensor([[1, 1, 0]]))
        {'clip_fraction': 0.5}
    """
    return {name: float(masked_mean(values.float(), response_mask)) for name, values in metrics.items()}
