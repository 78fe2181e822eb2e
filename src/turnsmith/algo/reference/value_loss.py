"""The critic's clipped loss.

Reference implementation: training uses verl's `compute_value_loss`, and `tests/unit/algo/test_against_verl.py` checks
that both agree.
"""

from __future__ import annotations

import torch
from torch import Tensor

from turnsmith.algo.reference.aggregation import Aggregation, aggregate_loss, token_metrics
from turnsmith.algo.shapes import require_same_shape


def compute_value_loss(
    vpreds: Tensor,
    returns: Tensor,
    old_values: Tensor,
    response_mask: Tensor,
    cliprange_value: float | None = 0.2,
    *,
    aggregation: Aggregation = "token-mean",
) -> tuple[Tensor, dict[str, float]]:
    """Clipped value loss of PPO (https://arxiv.org/abs/1707.06347, as in OpenAI's baselines).

        l_t = 1/2 max((V_t - R_t)^2, (clip(V_t, V_old_t - c, V_old_t + c) - R_t)^2)

    Args:
        vpreds: V `(batch, time)`, the critic's current predictions; the gradient flows into these.
        returns: R `(batch, time)`.
        old_values: V_old `(batch, time)`, the predictions that the advantages were computed with.
        response_mask: `(batch, time)`, 1 on model tokens; all other positions are ignored.
        cliprange_value: c; None for no clipping.
        aggregation: How token losses are averaged, see `aggregate_loss`.

    Returns:
        The loss, and the metrics `clip_fraction` (share of tokens on the clipped branch) and `value` (mean of V).

    Example:
        >>> ones = torch.ones(1, 1)
        >>> compute_value_loss(vpreds=2 * ones, returns=2 * ones, old_values=0 * ones, response_mask=ones)
        (tensor(1.6200), {'clip_fraction': 1.0, 'value': 2.0})
    """
    require_same_shape(vpreds=vpreds, returns=returns, old_values=old_values, response_mask=response_mask)
    on = response_mask != 0
    value, target, old = vpreds.where(on, 0.0), returns.where(on, 0.0), old_values.where(on, 0.0)
    loss = (value - target).square()
    clipped = loss
    if cliprange_value is not None:
        clipped = (value.clamp(old - cliprange_value, old + cliprange_value) - target).square()
    metrics = {"clip_fraction": clipped > loss, "value": value.detach()}
    total = 0.5 * aggregate_loss(torch.maximum(loss, clipped), response_mask, aggregation)
    return total, token_metrics(metrics, response_mask)
