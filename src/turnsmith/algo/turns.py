"""Where the turns of a batch are: numbers of tokens gathered to turns, and numbers of turns given to tokens.

A turn is a maximal run of model tokens. Numbers of turns are tables `(batch, turns)` in float64: column k is the k-th
turn of each episode, and the columns after an episode's last turn hold nothing (`Turns.exists`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from turnsmith.algo.shapes import as_mask, row_slices


@dataclass(frozen=True)
class Turns:
    """The turns of a batch. Made by `find_turns`."""

    exists: Tensor
    """`(batch, turns)`, bool: whether the episode has such a turn."""
    _mask: Tensor
    _begins: Tensor
    """Where the pieces of the batch begin, as positions in the rows laid end to end.

    A piece is a turn with all that follows it up to the next turn or the end of its row. A row that does not begin with
    a model token has one piece more at its front, which is no turn.
    """
    _is_turn: Tensor

    def sum(self, numbers: Tensor) -> Tensor:
        """Sum of each turn with what follows it, up to the next turn: a reward on an observation is not lost.

        What is before the first turn belongs to none.

        Example:
            >>> turns = find_turns(torch.tensor([[0, 1, 1, 0, 1], [1, 0, 0, 0, 0]]))
            >>> turns.sum(torch.tensor([[9.0, 1.0, 1.0, 1.0, 5.0], [2.0, 0.0, 0.0, 4.0, 0.0]]))
            tensor([[3., 5.],
                    [6., 0.]], dtype=torch.float64)
        """
        sums = self._begins.new_zeros(self._begins.shape, dtype=torch.float64)
        for rows, pieces, lengths in self._blocks():
            # In float64 the sum of float32 rewards does not depend on where they sit in the turn.
            flat = numbers[rows].to(torch.float64).flatten()
            sums[pieces] = torch.segment_reduce(flat, "sum", lengths=lengths, unsafe=True)
        return self._table(sums[self._is_turn])

    def first(self, numbers: Tensor) -> Tensor:
        """The number at the first token of each turn, in its own type.

        Example:
            >>> find_turns(torch.tensor([[0, 1, 1, 0, 1]])).first(torch.tensor([[0, 7, 8, 0, 9]]))
            tensor([[7, 9]])
        """
        places = self._begins[self._is_turn]
        width = max(numbers.shape[1], 1)
        return self._table(numbers[places // width, places % width])

    def to_tokens(self, table: Tensor, dtype: torch.dtype) -> Tensor:
        """Give each model token its turn's number, and 0 to every other position.

        Example:
            >>> find_turns(torch.tensor([[0, 1, 1, 0, 1]])).to_tokens(torch.tensor([[2.0, 3.0]]), torch.float32)
            tensor([[0., 2., 2., 0., 3.]])
        """
        numbers = table.new_zeros(self._begins.shape, dtype=dtype)
        numbers[self._is_turn] = table[self.exists].to(dtype)
        tokens = torch.empty(self._mask.shape, dtype=dtype, device=table.device)
        for rows, pieces, lengths in self._blocks():
            on = as_mask(self._mask[rows], dtype)
            # The piece of each token, by counting the beginnings up to it. repeat_interleave starts threads even for
            # this little, which is many times slower on a busy machine.
            piece = torch.zeros(on.numel(), dtype=torch.long, device=on.device)
            piece.scatter_(0, lengths[:-1].cumsum(0), 1)
            number = numbers[pieces].index_select(0, piece.cumsum_(0))
            torch.mul(number.view(on.shape), on, out=tokens[rows])
        return tokens

    def _table(self, per_turn: Tensor) -> Tensor:
        table = per_turn.new_zeros(self.exists.shape)
        table[self.exists] = per_turn
        return table

    def _blocks(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Rows to work on at once, the pieces in them, and the length of each piece."""
        rows, width = self._mask.shape
        lengths = self._begins.diff(append=self._begins.new_tensor([rows * width]))
        blocks = list(row_slices(self._mask))
        ends = self._begins.new_tensor([min(block.stop, rows) * width for block in blocks])
        start = 0
        for block, stop in zip(blocks, torch.searchsorted(self._begins, ends).tolist(), strict=True):
            yield block, slice(start, stop), lengths[start:stop]
            start = stop


def find_turns(response_mask: Tensor) -> Turns:
    """The turns of each episode: the maximal runs of 1s in its row.

    Args:
        response_mask: `(batch, time)`, zeros and ones.

    Example:
        >>> find_turns(torch.tensor([[1, 1, 0, 1], [0, 1, 1, 1], [0, 0, 0, 0]])).exists
        tensor([[ True,  True],
                [ True, False],
                [False, False]])
    """
    rows, width = response_mask.shape
    found = [response_mask.new_zeros(0, dtype=torch.long)]
    for block in row_slices(response_mask):
        mask = response_mask[block]
        begins = torch.ones(mask.shape, dtype=torch.bool, device=mask.device)
        torch.gt(mask[:, 1:], mask[:, :-1], out=begins[:, 1:])
        found.append(begins.flatten().nonzero().squeeze(1) + block.start * width)
    begins = torch.cat(found)
    row = begins // max(width, 1)
    is_turn = response_mask[row, begins % max(width, 1)] != 0
    count = torch.bincount(row[is_turn], minlength=rows)
    most = int(count.max()) if rows else 0
    exists = torch.arange(most, device=count.device) < count.unsqueeze(-1)
    return Turns(exists, response_mask, begins, is_turn)
