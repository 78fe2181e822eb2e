"""One row for each episode, made of the rows of its segments, so that estimators compare episodes and never segments.

An agent that rewrites its history or has several conversations gives several token sequences. The row of its episode
has the model's turns of all of them in the order in which they were sampled. So a reward reaches every turn that was
sampled before it, in whichever segment: a turn that sums up a conversation earns what comes after it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from turnsmith.trajectory import Trajectory

if TYPE_CHECKING:
    from torch import Tensor


def places_in_episode(trajectory: Trajectory) -> list[int]:
    """The place of each token after the prompt in the row of its episode, counted from 1; 0 for those that are in none.

    One segment is the row. The row of several has the sampled tokens only, and a gap between two turns.

    Example:
        >>> from turnsmith.trajectory import TokenBuffer, TurnRecord
        >>> episode = Trajectory(branches=[TokenBuffer()])
        >>> for branch in (1, 0):  # the first turn is in the second segment
        ...     tokens = episode.segments[branch]
        ...     tokens.open([5])
        ...     span = tokens.append_model([6, 7], [-0.5] * 2)
        ...     tokens.append_context([8])
        ...     episode.turns.append(TurnRecord(*span, "stop", 0, branch=branch))
        >>> places_in_episode(episode)
        [4, 5, 0, 1, 2, 0]
    """
    length = trajectory.response_length
    if not trajectory.branches:
        return list(range(1, length + 1))
    places, place = [0] * length, 1
    for start, stop in trajectory.turn_spans():
        places[start:stop] = range(place, place + stop - start)
        place += stop - start + 1
    return places


@dataclass(frozen=True)
class EpisodeRows:
    """Which tokens of segments are where in the rows of their episodes.

    Example:
        >>> import torch
        >>> rows = EpisodeRows.of(["a", "b", "a"], torch.tensor([[3, 4], [1, 2], [1, 0]]))
        >>> rows.join(torch.tensor([[1, 2], [3, 4], [5, 6]]))
        tensor([[5, 0, 1, 2],
                [3, 4, 0, 0]])
        >>> rows.split(torch.tensor([[7, 0, 8, 9], [1, 2, 0, 0]]))
        tensor([[8, 9],
                [1, 2],
                [7, 0]])
        >>> rows.first(["x", "y", "x"])
        ['x', 'y']
    """

    _firsts: list[int]
    """The first row of each episode."""
    _used: Tensor
    """`(segments, tokens)`, bool: whether the token is in the row of its episode."""
    _episode: Tensor
    """Of each of those: the row of its episode, and its place there."""
    _place: Tensor

    @classmethod
    def of(cls, episodes: Iterable[Hashable], places: Tensor) -> EpisodeRows:
        """From the episode of each row, and `places_in_episode` of its tokens, padded with 0."""
        numbers: dict[Hashable, int] = {}
        firsts, row_numbers = list[int](), list[int]()
        for row, name in enumerate(episodes):
            if name not in numbers:
                numbers[name] = len(numbers)
                firsts.append(row)
            row_numbers.append(numbers[name])
        used = places > 0
        episode = places.new_tensor(row_numbers).unsqueeze(-1).expand_as(places)[used]
        return cls(firsts, used, episode, places[used] - 1)

    def join(self, numbers: Tensor) -> Tensor:
        """`(segments, tokens)` to `(episodes, tokens)`."""
        width = int(self._place.max()) + 1 if self._place.numel() else 1
        joined = numbers.new_zeros((len(self._firsts), width))
        joined[self._episode, self._place] = numbers[self._used]
        return joined

    def split(self, numbers: Tensor) -> Tensor:
        """`(episodes, tokens)` to `(segments, tokens)`."""
        rows = numbers.new_zeros(self._used.shape)
        rows[self._used] = numbers[self._episode, self._place]
        return rows

    def first(self, items: Sequence[Any]) -> list[Any]:
        """One item for each episode, of those for each row."""
        return [items[row] for row in self._firsts]
