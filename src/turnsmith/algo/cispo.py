"""CISPO: clip the importance ratio as a weight, so that no token loses its gradient.

Reference implementation: training uses verl's `compute_policy_loss_cispo`, and `tests/unit/algo/test_against_verl.py`
checks that both agree.
"""

from __future__ import annotations

from torch import Tensor

from turnsmith.algo.aggregation import Aggregation, BatchTotals
from turnsmith.algo.policy_loss import clip_bounds, loss_and_metrics, masked_log_ratio


def compute_cispo_policy_loss(
    old_log_probs: Tensor,
    log_probs: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    clip_ratio: float = 0.2,
    *,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    aggregation: Aggregation = "token-mean",
    weights: Tensor | None = None,
    totals: BatchTotals | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """CISPO (MiniMax 2025, https://arxiv.org/abs/2506.13585).

    With the importance ratio w_t = exp(log pi(a_t) - log pi_old(a_t)) and sg for stop-gradient:

        l_t = -sg[clip(w_t, 1 - low, 1 + high)] A_t log pi(a_t)

    Args and returns as in `compute_policy_loss`, without dual clip. `clip_fraction` counts the tokens whose ratio was
    outside the clip range.

    Example:
        >>> import torch
        >>> old, new = torch.full((1, 1), -2.0), torch.full((1, 1), -1.0)
        >>> compute_cispo_policy_loss(old, new, torch.ones(1, 1), torch.ones(1, 1))[0]  # 1.2 * 1 * 1
        tensor(1.2000)
    """
    bounds = clip_bounds(clip_ratio, clip_ratio_low, clip_ratio_high)
    log_ratio, advantages = masked_log_ratio(old_log_probs, log_probs, advantages, response_mask)
    ratio = log_ratio.detach().clamp(-20.0, 20.0).exp()
    clipped = ratio.clamp(*bounds)
    loss = -clipped * advantages * log_probs
    metrics = {"clip_fraction": ratio != clipped, "kl": -log_ratio.detach()}
    return loss_and_metrics(loss, metrics, response_mask, aggregation, weights, totals)
