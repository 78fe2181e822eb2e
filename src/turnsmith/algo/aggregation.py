"""From one loss a token to one number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from turnsmith.algo.shapes import require_same_shape

Aggregation = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean"]
"""How token losses are averaged; verl's names. "seq" is an episode."""


@dataclass(frozen=True)
class BatchTotals:
    """The whole batch that a micro-batch is a part of, so that parts add up to its loss. verl's names.

    Example:
        >>> BatchTotals(dp_size=2, batch_num_tokens=100)
        BatchTotals(dp_size=2, batch_num_tokens=100, global_batch_size=None, loss_scale_factor=None)
    """

    dp_size: int = 1
    """Number of workers whose gradients are averaged."""
    batch_num_tokens: float | None = None
    """Model tokens of the whole batch; of this part by default."""
    global_batch_size: float | None = None
    """Episodes of the whole batch; those of this part that have a model token by default."""
    loss_scale_factor: float | None = None
    """Divisor of "seq-mean-token-sum-norm"; the width of the batch by default."""


def aggregate_loss(
    loss: Tensor, response_mask: Tensor, aggregation: Aggregation = "token-mean", totals: BatchTotals | None = None
) -> Tensor:
    """Average token losses l_{i,t}: N model tokens in B episodes that have any, n_i of them in episode i.

        token-mean               1/N sum_i sum_t l_{i,t}            every token weighs the same (DAPO)
        token-sum                    sum_i sum_t l_{i,t}
        seq-mean-token-sum       1/B sum_i sum_t l_{i,t}            every episode's sum weighs the same
        seq-mean-token-sum-norm  1/(B T) sum_i sum_t l_{i,t}        the same over a constant length T (Dr. GRPO)
        seq-mean-token-mean      1/B sum_i 1/n_i sum_t l_{i,t}      every episode's mean weighs the same (GRPO)

    A loss that is NaN outside the mask changes neither the sum nor its gradient at other tokens. If no token has mask 1
    the result is 0 (verl 0.9.1: NaN).

    Args:
        loss: `(batch, time)`.
        response_mask: `(batch, time)`, 1 on model tokens.
        aggregation: One of the five.
        totals: Numbers of the whole batch, if this is a part of it.

    Returns:
        A scalar.

    Example:
        >>> loss, mask = torch.tensor([[1.0, 3.0], [8.0, 9.0]]), torch.tensor([[1, 1], [1, 0]])
        >>> aggregate_loss(loss, mask), aggregate_loss(loss, mask, "seq-mean-token-mean")
        (tensor(4.), tensor(5.))
    """
    require_same_shape(loss=loss, response_mask=response_mask)
    if aggregation not in get_args(Aggregation):
        raise ValueError(f"there is no aggregation {aggregation!r}; there are {', '.join(get_args(Aggregation))}")
    totals = totals or BatchTotals()
    needed = totals.batch_num_tokens if aggregation == "token-mean" else totals.global_batch_size
    if totals.dp_size > 1 and needed is None and aggregation != "token-sum":
        name = "batch_num_tokens" if aggregation == "token-mean" else "global_batch_size"
        raise ValueError(f"with {totals.dp_size} workers {aggregation!r} needs {name} of the whole batch")
    lengths = (response_mask != 0).sum(dim=-1)
    sums = loss.where(response_mask != 0, 0.0).sum(dim=-1)
    if aggregation == "seq-mean-token-mean":
        sums = sums / lengths.clamp(min=1)
    total = sums.sum() * totals.dp_size
    if aggregation == "token-sum":
        return total
    if needed is None:
        needed = int(lengths.sum()) if aggregation == "token-mean" else int(torch.count_nonzero(lengths))
    if aggregation == "seq-mean-token-sum-norm":
        needed = needed * (totals.loss_scale_factor or loss.shape[-1])
    return total / max(needed, 1)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the mask; 0 if it is empty.

    Example:
        >>> masked_mean(torch.tensor([[1.0, 3.0, float("nan")]]), torch.tensor([[1, 1, 0]]))
        tensor(2.)
    """
    on = mask != 0
    return values.where(on, 0.0).sum() / on.sum().clamp(min=1)
