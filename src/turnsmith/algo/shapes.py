"""Shape and dtype checks of tensors that belong together.

A mask of another shape would broadcast silently and train on the wrong tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

SERIAL = 32767
"""Largest number of elements for which torch runs an operation on one thread.

Thousands of short operations that wait for each other's threads are a little faster on an idle machine and many times
slower on a busy one.
"""


def require_same_shape(**tensors: Tensor) -> None:
    """Raise unless all tensors have one shape `(batch, time)`.

    Example:
        >>> require_same_shape(rewards=torch.zeros(2, 3), response_mask=torch.zeros(2, 1))
        Traceback (most recent call last):
        ValueError: response_mask is (2, 1), but rewards is (2, 3): both must be (batch, time)
    """
    (first, expected), *others = tensors.items()
    if expected.dim() != 2:
        raise ValueError(f"{first} is {tuple(expected.shape)}, but must be (batch, time)")
    for name, tensor in others:
        if tensor.shape != expected.shape:
            raise ValueError(
                f"{name} is {tuple(tensor.shape)}, but {first} is {tuple(expected.shape)}: both must be (batch, time)"
            )


def working_dtype(*tensors: Tensor) -> torch.dtype:
    """float64 if any tensor has it, else float32: sums in half precision would be too coarse.

    Example:
        >>> working_dtype(torch.zeros(1, dtype=torch.bfloat16), torch.zeros(1))
        torch.float32
    """
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32


def as_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask as exact zeros and ones of `dtype`; the tensor itself if it already has that dtype.

    Example:
        >>> as_mask(torch.tensor([[True, False]]), torch.float32)
        tensor([[1., 0.]])
    """
    return mask if mask.dtype == dtype else (mask != 0).to(dtype)


def row_slices(tensor: Tensor) -> Iterator[slice]:
    """Blocks of rows small enough for the cache and for one thread.

    Example:
        >>> list(row_slices(torch.empty(5, 10_000)))
        [slice(0, 3, None), slice(3, 6, None)]
    """
    rows = max(1, SERIAL // max(tensor.shape[1], 1))
    return (slice(start, start + rows) for start in range(0, tensor.shape[0], rows))
