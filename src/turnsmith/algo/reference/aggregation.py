"""Reduce per-token losses to a scalar, and per-token metrics to their means.

Reference implementation: training uses verl's `agg_loss`, and `tests/unit/algo/test_against_verl.py` checks that both
agree.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from turnsmith.algo.shapes import require_same_shape

Aggregation = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean"]
"""How token losses are averaged, by verl's names; "seq" is an episode."""


def aggregate_loss(loss: Tensor, response_mask: Tensor, aggregation: Aggregation = "token-mean") -> Tensor:
    """Average token losses l_{i,t}: N model tokens in B episodes that have any, n_i of them in episode i.

        token-mean               1/N sum_i sum_t l_{i,t}            every token has the same weight (DAPO)
        token-sum                    sum_i sum_t l_{i,t}
        seq-mean-token-sum       1/B sum_i sum_t l_{i,t}            every episode's sum has the same weight
        seq-mean-token-sum-norm  1/(B T) sum_i sum_t l_{i,t}        the same, divided by a constant length T (Dr. GRPO)
        seq-mean-token-mean      1/B sum_i 1/n_i sum_t l_{i,t}      every episode's mean has the same weight (GRPO)

    A NaN outside the mask affects neither the result nor the gradient of other tokens. An empty mask gives 0 (verl
    0.9.1: NaN).

    Args:
        loss: `(batch, time)`.
        response_mask: `(batch, time)`, 1 on model tokens.
        aggregation: One of the five above.

    Returns:
        A scalar.

    Example:
        >>> loss, mask = torch.tensor([[1.0, 3.0], [8.0, 9.0]]), torch.tensor([[1, 1], [1, 0]])
        >>> aggregate_loss(loss, mask), aggregate_loss(loss, mask, "seq-mean-token-mean")
        (tensor(4.), tensor(5.))
    """
    require_same_shape(loss=loss, response_mask=response_mask)
    if aggregation not in get_args(Aggregation):
        raise ValueError(f"unknown aggregation {aggregation!r}; use one of {', '.join(get_args(Aggregation))}")
    lengths = (response_mask != 0).sum(dim=-1)
    sums = loss.where(response_mask != 0, 0.0).sum(dim=-1)
    if aggregation == "seq-mean-token-mean":
        sums = sums / lengths.clamp(min=1)
    if aggregation == "token-sum":
        return sums.sum()
    count = int(lengths.sum() if aggregation == "token-mean" else torch.count_nonzero(lengths))
    if aggregation == "seq-mean-token-sum-norm":
        count *= loss.shape[-1]
    return sums.sum() / max(count, 1)


def token_metrics(metrics: dict[str, Tensor], response_mask: Tensor) -> dict[str, float]:
    """Mean of each metric over the model tokens; 0 if there are none.

    Example:
        >>> token_metrics({"clip_fraction": torch.tensor([[True, False, True]])}, torch.tensor([[1, 1, 0]]))
        {'clip_fraction': 0.5}
    """
    on = response_mask != 0
    count = on.sum().clamp(min=1)
    return {name: float(values.float().where(on, 0.0).sum() / count) for name, values in metrics.items()}
