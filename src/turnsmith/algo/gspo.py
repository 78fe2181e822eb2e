"""GSPO: one importance ratio per episode.

Reference implementation: training uses verl's `compute_policy_loss_gspo`, and `tests/unit/algo/test_against_verl.py`
checks that both agree.
"""

from __future__ import annotations

from torch import Tensor

from turnsmith.algo.aggregation import Aggregation, BatchTotals
from turnsmith.algo.policy_loss import clip_bounds, clipped_loss, loss_and_metrics, masked_log_ratio


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

    With n_i model tokens in episode i and sg for stop-gradient:

        w_i     = exp(1/n_i sum_t (log pi(a_t) - log pi_old(a_t)))
        w_{i,t} = sg[w_i] exp(log pi(a_t) - sg[log pi(a_t)])
        l_{i,t} = max(-w_{i,t} A_{i,t}, -clip(w_{i,t}, 1 - low, 1 + high) A_{i,t})

    The paper's clip range is a few hundred times narrower than PPO's, because w_i is a mean.

    Args and returns as in `compute_policy_loss`, without dual clip.

    Example:
        >>> import torch
        >>> old, new = torch.zeros(1, 2), torch.tensor([[0.0, 0.2]])
        >>> loss, _ = compute_gspo_policy_loss(old, new, torch.ones(1, 2), torch.ones(1, 2))
        >>> loss  # -exp(0.1)
        tensor(-1.1052)
    """
    bounds = clip_bounds(clip_ratio, clip_ratio_low, clip_ratio_high)
    log_ratio, advantages = masked_log_ratio(old_log_probs, log_probs, advantages, response_mask)
    lengths = (response_mask != 0).sum(dim=-1, keepdim=True).clamp(min=1)
    mean = log_ratio.detach().sum(dim=-1, keepdim=True) / lengths
    ratio = (mean + log_ratio - log_ratio.detach()).clamp(max=10.0).exp()
    loss, is_clipped = clipped_loss(ratio, advantages, bounds)
    metrics = {"clip_fraction": is_clipped, "kl": -log_ratio.detach()}
    return loss_and_metrics(loss, metrics, response_mask, aggregation, weights, totals)
