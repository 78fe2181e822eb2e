"""Compare each episode with its group: the part that GRPO, RLOO and the other group estimators share."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


def group_numbers(index: Tensor | Iterable[Hashable], token_level_rewards: Tensor) -> Tensor:
    """Number the groups from 0; gives the group of each episode, `(batch,)`.

    Args:
        index: Group of each episode: a tensor, a numpy array or a list, of integers or strings.
        token_level_rewards: `(batch, time)`; read for its device and number of episodes only.

    Example:
        >>> group_numbers(["b", "a", "b"], torch.zeros(3, 5))
        tensor([0, 1, 0])
    """
    device, episodes = token_level_rewards.device, token_level_rewards.shape[0]
    if isinstance(index, Tensor):
        group = torch.unique(index.to(device), return_inverse=True)[1]
    else:
        numbers: dict[Hashable, int] = {}
        group = torch.tensor(
            [numbers.setdefault(name, len(numbers)) for name in index], dtype=torch.long, device=device
        )
    if group.shape != (episodes,):
        raise ValueError(f"index has {group.numel()} entries, but the batch has {episodes} episodes")
    return group


@dataclass(frozen=True)
class Deviations:
    """How each score differs from its group. All tensors have the shape of the scores."""

    deviation: Tensor
    """s_i - mean of its group; 0 for a score that is not finite and in a group of one."""
    std: Tensor
    """Standard deviation of its group, with n - 1; 0 in a group of one."""
    count: Tensor
    """Number of finite scores in its group."""

    def scaled(self, by_std: bool, epsilon: float) -> Tensor:
        """The deviations, divided by std + epsilon if `by_std`."""
        return self.deviation / (self.std + epsilon) if by_std else self.deviation

    def leave_one_out(self) -> Tensor:
        """s_i - mean of the others in its group = n/(n-1) (s_i - mean)."""
        return self.deviation * (self.count / (self.count - 1).clamp(min=1))


def group_deviations(scores: Tensor, group: Tensor, weights: Tensor | None = None) -> Deviations:
    """Compare each score with the weighted mean of its group: s_i - sum_j w_j s_j / sum_j w_j.

    The smallest score of each group is subtracted first. Equal scores then give exactly 0, however the mean rounds, and
    scores of 1e8 that differ by 1 keep their difference.

    Args:
        scores: Float64, one dimension. A score that is not finite is left out of its group.
        group: Group number of each score, from 0.
        weights: w; 1 by default.

    Example:
        >>> group_deviations(torch.tensor([1.0, 3.0, 7.0]).double(), torch.tensor([0, 0, 1])).deviation
        tensor([-1.,  1.,  0.], dtype=torch.float64)
    """
    finite = torch.isfinite(scores)
    ones = finite.to(scores.dtype)
    weights = ones if weights is None else weights.to(scores.dtype) * ones
    smallest = over_group(scores.where(finite, torch.inf), group, "amin")
    above = (scores - smallest).where(finite, 0.0)
    weight = over_group(weights, group)
    mean = over_group(above * weights, group) / weight.where(weight > 0, 1.0)
    deviation = (above - mean).where(finite, 0.0)
    count = over_group(ones, group)
    variance = over_group(deviation.square(), group) / (count - 1).clamp(min=1)
    return Deviations(deviation, variance.sqrt(), count)


def over_group(numbers: Tensor, group: Tensor, reduce: Literal["sum", "amin", "amax"] = "sum") -> Tensor:
    """Sum, minimum or maximum of each number's group, in the shape of the numbers.

    Example:
        >>> over_group(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 1, 0]))
        tensor([5., 2., 5.])
    """
    groups = int(group.max()) + 1 if group.numel() else 0
    identity = {"sum": 0.0, "amin": torch.inf, "amax": -torch.inf}[reduce]
    # gather rather than indexing, which would start threads even for tensors this small.
    return numbers.new_full((groups,), identity).scatter_reduce(0, group, numbers, reduce).gather(0, group)


def to_tokens(per_episode: Tensor, response_mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Give each model token its episode's number, and every other position 0.

    Example:
        >>> to_tokens(torch.tensor([2.0]), torch.tensor([[1, 0, 1]]), torch.float32)
        tensor([[2., 0., 2.]])
    """
    mask = response_mask if response_mask.dtype == dtype else response_mask != 0
    return per_episode.to(dtype).unsqueeze(-1) * mask
