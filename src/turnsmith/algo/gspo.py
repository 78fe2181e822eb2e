"""GSPO: one ratio for an episode."""

from __future__ import annotations

import torch
from torch import Tensor

from turnsmith.algo.aggregation import Aggregation, BatchTotals, aggregate_loss
from turnsmith.algo.policy_loss import masked_log_ratio, token_metrics


def compute_gspo_policy_loss(
    old_log_probs: Tensor,
    log_probs: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    clip_ratio: float = 0.2,
    *,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    aggregation: Aggregation = "seq-mean-token-mean",
    weights: Tensor | None = None,
    totals: BatchTotals | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """GSPO (Zheng et al. 2025, https://arxiv.org/abs/2507.18071), in its token form.

    With n_i model tokens in episode i, and sg the value without its gradient:

        w_i     = exp(1/n_i sum_t (log pi(a_t) - log pi_old(a_t)))
        w_{i,t} = sg[w_i] exp(log pi(a_t) - sg[log pi(a_t)])
        l_{i,t} = max(-w_{i,t} A_{i,t}, -clip(w_{i,t}, 1 - low, 1 + high) A_{i,t})

    The paper's clip range is some hundred times narrower than PPO's, as w_i is a mean.

    Args and returns as in `compute_policy_loss`, without dual clip.

    Example:
        >>> old, new = torch.zeros(1, 2), torch.tensor([[0.0, 0.2]])
        >>> loss, _ = compute_gspo_policy_loss(old, new, torch.ones(1, 2), torch.ones(1, 2))
        >>> loss  # -exp(0.1)
        tensor(-1.1052)
    """
    low = clip_ratio if clip_ratio_low is None else clip_ratio_low
    high = clip_ratio if clip_ratio_high is None else clip_ratio_high
    log_ratio, advantages = masked_log_ratio(old_log_probs, log_probs, advantages, response_mask)
    lengths = (response_mask != 0).sum(dim=-1, keepdim=True).clamp(min=1)
    mean = log_ratio.detach().sum(dim=-1, keepdim=True) / lengths
    ratio = (mean + log_ratio - log_ratio.detach()).clamp(max=10.0).exp()
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - low, 1 + high)
    loss = torch.maximum(plain, clipped)
    if weights is not None:
        loss = loss * weights
    metrics = {"clip_fraction": clipped > plain, "kl": -log_ratio.detach()}
    return aggregate_loss(loss, response_mask, aggregation, totals), token_metrics(metrics, response_mask)
