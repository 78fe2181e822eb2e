"""Whitening: shift and scale advantages to mean 0 and variance 1 over the batch's model tokens."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from turnsmith.algo.shapes import row_slices


def whiten(values: Tensor, mask: Tensor, epsilon: float = 1e-8) -> Tensor:
    """Whiten over the mask: (x_t - mean) / sqrt(var + epsilon), with n - 1 in the variance; 0 outside the mask.

    A mask of fewer than two tokens gives 0, and so do equal values, exactly. verl's `masked_whiten` raises for the
    former, and leaves numbers other than 0 outside the mask.

    Args:
        values: `(batch, time)`; finite on the mask.
        mask: `(batch, time)`, zeros and ones.

    Returns:
        A new tensor `(batch, time)`.

    Example:
        >>> whiten(torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([[1, 1, 0]]))
        tensor([[-0.7071,  0.7071,  0.0000]])
    """
    return whiten_(values.masked_fill(mask == 0, 0.0), mask, epsilon)


def whiten_(values: Tensor, mask: Tensor, epsilon: float = 1e-8) -> Tensor:
    """Like `whiten`, in place; `values` must be 0 outside the mask already.

    Example:
        >>> whiten_(torch.tensor([[5.0, 5.0, 0.0]]), torch.tensor([[1, 1, 0]]))
        tensor([[0., 0., 0.]])
    """
    parts = [(values[rows], mask[rows]) for rows in row_slices(values)]
    # float32 counts exactly up to 2^24, and several times faster than count_nonzero.
    count = sum(float(on.sum(dtype=torch.float32)) for _, on in parts)
    mean = sum(float(part.sum(dtype=torch.float64)) for part, _ in parts) / max(count, 1)
    squares = 0.0
    for part, on in parts:
        part.add_(on, alpha=-mean)
        squares += float(part.double().square().sum())
    return values.mul_(1 / math.sqrt(squares / max(count - 1, 1) + epsilon))
