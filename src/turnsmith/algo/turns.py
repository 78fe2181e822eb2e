"""Finds the turns of a batch, sums over each, and gives a number of each turn to its tokens.

A turn is a maximal run of model tokens. Numbers of turns are tables `(batch, turns)`: column k holds the k-th turn of
each episode, and the columns after an episode's last turn hold 0 (see `Turns.exists`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True)
class Turns:
    """The turns of a batch, as found by `find_turns`."""

    exists: Tensor
    """`(batch, turns)`, bool: whether the episode has such a turn."""
    _mask: Tensor
    """`(batch, time)`, bool: model tokens."""
    _starts: Tensor
    """`(batch, time)`, bool: first tokens of turns."""
    _number: Tensor
    """`(batch, time)`, int64: how many turns have started, this token included; 0 before the first turn."""

    def sum(self, numbers: Tensor) -> Tensor:
        """Sum over each turn and the observation after it, in float64; what precedes the first turn is left out.

        Example:
            >>> turns = find_turns(torch.tensor([[0, 1, 1, 0, 1], [1, 0, 0, 0, 0]]))
            >>> turns.sum(torch.tensor([[9.0, 1.0, 1.0, 1.0, 5.0], [2.0, 0.0, 0.0, 4.0, 0.0]]))
            tensor([[3., 5.],
                    [6., 0.]], dtype=torch.float64)
        """
        episodes, turns = self.exists.shape
        sums = numbers.new_zeros((episodes, turns + 1), dtype=torch.float64)
        return sums.scatter_add_(1, self._number, numbers.double())[:, 1:]

    def first(self, numbers: Tensor) -> Tensor:
        """The number at the first token of each turn, in its own dtype.

        Example:
            >>> find_turns(torch.tensor([[0, 1, 1, 0, 1]])).first(torch.tensor([[0, 7, 8, 0, 9]]))
            tensor([[7, 9]])
        """
        table = numbers.new_zeros(self.exists.shape)
        table[self.exists] = numbers[self._starts]
        return table

    def to_tokens(self, table: Tensor, dtype: torch.dtype) -> Tensor:
        """Give each model token its turn's number, and every other position 0.

        Example:
            >>> find_turns(torch.tensor([[0, 1, 1, 0, 1]])).to_tokens(torch.tensor([[2.0, 3.0]]), torch.float32)
            tensor([[0., 2., 2., 0., 3.]])
        """
        return pad(table.to(dtype), (1, 0)).gather(1, self._number).mul_(self._mask)


def find_turns(response_mask: Tensor) -> Turns:
    """Find the turns of each episode: the maximal runs of 1s in its row.

    Args:
        response_mask: `(batch, time)`, zeros and ones.

    Example:
        >>> find_turns(torch.tensor([[1, 1, 0, 1], [0, 1, 1, 1], [0, 0, 0, 0]])).exists
        tensor([[ True,  True],
                [ True, False],
                [False, False]])
    """
    mask = response_mask != 0
    starts = mask.clone()
    starts[:, 1:] &= ~mask[:, :-1]
    count = starts.sum(dim=1, keepdim=True)
    most = int(count.max()) if len(count) else 0
    exists = torch.arange(most, device=mask.device) < count
    return Turns(exists, mask, starts, starts.cumsum(dim=1))
