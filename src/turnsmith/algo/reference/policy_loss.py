"""PPO's clipped policy loss with clip-higher and dual clip.

Reference implementation: training uses verl's `compute_policy_loss_vanilla`, and `tests/unit/algo/test_against_verl.py`
checks that both agree.
"""

from __future__ import annotations

import torch
from torch import Tensor

from turnsmith.algo.reference.aggregation import Aggregation, aggregate_loss, token_metrics
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
) -> tuple[Tensor, dict[str, float]]:
    """PPO (Schulman et al. 2017, https://arxiv.org/abs/1707.06347).

    With the importance ratio w_t = exp(log pi(a_t) - log pi_old(a_t)):

        l_t = max(-w_t A_t, -clip(w_t, 1 - low, 1 + high) A_t)
        l_t = min(l_t, -c A_t)   where A_t < 0

    high > low is clip-higher (DAPO, Yu et al. 2025, https://arxiv.org/abs/2503.14476), which lets unlikely tokens grow.
    The second line is dual clip (Ye et al. 2020, https://arxiv.org/abs/1912.09729): it bounds the gradient of a bad
    token that has become much more likely. As in verl, the log-ratio is clamped to [-20, 20] so that exp never
    overflows.

    Args:
        old_log_probs: log pi_old `(batch, time)`.
        log_probs: log pi `(batch, time)`; the gradient flows into these.
        advantages: A `(batch, time)`.
        response_mask: `(batch, time)`, 1 on model tokens; all other positions are ignored.
        clip_ratio: Default for both low and high.
        clip_ratio_low: low.
        clip_ratio_high: high.
        dual_clip: c, larger than 1; None for plain PPO.
        aggregation: How token losses are averaged, see `aggregate_loss`.

    Returns:
        The loss, and the metrics `clip_fraction` and `dual_clip_fraction` (share of tokens on the clipped branch) and
        `kl` (mean of log pi_old - log pi).

    Example:
        >>> old, new = torch.zeros(1, 2), torch.tensor([[0.0, 1.0]])
        >>> loss, metrics = compute_policy_loss(old, new, torch.ones(1, 2), torch.ones(1, 2), clip_ratio=0.2)
        >>> loss, metrics["clip_fraction"]  # the second token's ratio is e, clipped to 1.2
        (tensor(-1.1000), 0.5)
    """
    if dual_clip is not None and dual_clip <= 1:
        raise ValueError(f"dual_clip is {dual_clip}, but must be larger than 1")
    require_same_shape(
        log_probs=log_probs, old_log_probs=old_log_probs, advantages=advantages, response_mask=response_mask
    )
    low = 1 - (clip_ratio if clip_ratio_low is None else clip_ratio_low)
    high = 1 + (clip_ratio if clip_ratio_high is None else clip_ratio_high)
    on = response_mask != 0
    # 0 outside the mask, so that a NaN there reaches no gradient.
    log_ratio, advantages = (log_probs - old_log_probs).where(on, 0.0), advantages.where(on, 0.0)
    ratio = log_ratio.clamp(-20.0, 20.0).exp()
    plain, clipped = -advantages * ratio, -advantages * ratio.clamp(low, high)
    loss = torch.maximum(plain, clipped)
    metrics = {"clip_fraction": clipped > plain, "kl": -log_ratio.detach()}
    if dual_clip is not None:
        most = -advantages * dual_clip
        metrics["dual_clip_fraction"] = (loss > most) & (advantages < 0)
        loss = torch.where(advantages < 0, torch.minimum(loss, most), loss)
    return aggregate_loss(loss, response_mask, aggregation), token_metrics(metrics, response_mask)
