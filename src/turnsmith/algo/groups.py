"""Episodes compared with the others of their group: the part that GRPO, RLOO and their kin share."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


def group_numbers(index: Tensor | Iterable[Hashable], device: torch.device | None = None) -> Tensor:
    """Group of each episode as a number from 0. Takes integers, strings or a numpy array of either.

    Example:
        >>> group_numbers(["b", "a", "b"])
        tensor([0, 1, 0])
    """
    if isinstance(index, Tensor):
        return torch.unique(index.to(device), return_inverse=True)[1]
    numbers: dict[Hashable, int] = {}
    return torch.tensor([numbers.setdefault(name, len(numbers)) for name in index], dtype=torch.long, device=device)


@dataclass(frozen=True)
class Deviations:
    """How each episode's score differs from its group. All of shape `(batch,)`."""

    deviation: Tensor
    """s_i - mean of its group; 0 for an episode without a finite score and in a group of one."""
    std: Tensor
    """Standard deviation of its group, with n - 1; 0 in a group of one."""
    count: Tensor
    """Number of finite scores in its group."""


def group_deviations(scores: Tensor, group: Tensor, weights: Tensor | None = None) -> Deviations:
    """Compare each score with its group: s_i - sum_j w_j s_j / sum_j w_j.

    The least score of the group is subtracted first. Equal scores are then exact zeros, whatever rounding the mean
    would have, and scores of 1e8 that differ by 1 keep their difference.

    Args:
        scores: `(batch,)`, float64. One that is not finite is left out of its group.
        group: `(batch,)`, numbers from `group_numbers`.
        weights: `(batch,)`; equal weights by default.

    Example:
        >>> group_deviations(torch.tensor([1.0, 3.0, 7.0]).double(), torch.tensor([0, 0, 1])).deviation
        tensor([-1.,  1.,  0.], dtype=torch.float64)
    """
    if scores.shape != group.shape:
        raise ValueError(f"index has {group.numel()} entries, but the batch has {scores.numel()} episodes")
    finite = torch.isfinite(scores)
    ones = finite.to(scores.dtype)
    weights = ones if weights is None else weights.to(scores.dtype) * ones
    size = int(group.max()) + 1 if group.numel() else 0
    empty = scores.new_zeros(size)
    # Members are read with gather: least[group] would split even this little among threads, for milliseconds each.
    least = torch.full_like(empty, torch.inf).scatter_reduce(0, group, scores.where(finite, torch.inf), "amin")
    above = (scores - least.gather(0, group)).where(finite, 0.0)
    weight = empty.scatter_add(0, group, weights)
    mean = empty.scatter_add(0, group, above * weights) / weight.where(weight > 0, 1.0)
    deviation = (above - mean.gather(0, group)).where(finite, 0.0)
    count = empty.scatter_add(0, group, ones)
    variance = empty.scatter_add(0, group, deviation.square()) / (count - 1).clamp(min=1)
    return Deviations(deviation, variance.sqrt().gather(0, group), count.gather(0, group))


def to_tokens(per_episode: Tensor, response_mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Give each model token its episode's number, and 0 to every other position.

    Example:
        >>> to_tokens(torch.tensor([2.0]), torch.tensor([[1, 0, 1]]), torch.float32)
        tensor([[2., 0., 2.]])
    """
    mask = response_mask if response_mask.dtype == dtype else response_mask != 0
    return per_episode.to(dtype).unsqueeze(-1) * mask
