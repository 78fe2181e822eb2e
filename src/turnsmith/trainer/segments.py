"""The rows of an episode: one for estimators, and what each of its rows weighs in a mean over episodes.

An agent that rewrites its history or has several conversations gives several token sequences, and as many rows. The one
row that estimators see has the model's turns of all of them in the order in which they were sampled, so that they
compare episodes and never segments. A reward reaches every turn that was sampled before it, in whichever segment: a
turn that sums up a conversation earns what comes after it.

verl's losses count rows, and verl fills a batch up with rows without tokens. Multiplied by `row_weights`, their
gradients count episodes.
"""

from __future__ import annotations

from collections import Counter
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


def counts_episodes(aggregation: str) -> bool:
    """Whether this `training.loss_aggregation` is a mean over episodes; the others weigh each token alike.

    Example:
        >>> counts_episodes("seq-mean-token-sum"), counts_episodes("token-mean")
        (True, False)
    """
    return aggregation.startswith("seq-mean")


def row_weights(episodes: Sequence[Hashable], tokens: Sequence[int], aggregation: str) -> list[float]:
    """The weight of each row's gradient.

    With R rows, E episodes that have tokens to train, and n tokens in a row of an episode that has N:

        seq-mean-token-sum, seq-mean-token-sum-norm    R / E
        seq-mean-token-mean                            R / E * n / N

    All are 1 if each row is an episode with tokens. The step of a batch in several mini-batches is exact as well: each
    episode has 1/E of the step, wherever its rows are.

    Args:
        episodes: The episode of each row.
        tokens: How many tokens of each row are trained.
        aggregation: `training.loss_aggregation`.

    Example:
        >>> row_weights(["a", "b", "b", "padding"], [8, 3, 1, 0], "seq-mean-token-mean")
        [2.0, 1.5, 0.5, 0.0]
        >>> row_weights(["a", "b"], [8, 3], "seq-mean-token-mean")
        [1.0, 1.0]
    """
    totals = Counter[Hashable]()
    for episode, count in zip(episodes, tokens, strict=True):
        totals[episode] += count
    scale = len(episodes) / max(1, sum(total > 0 for total in totals.values()))
    if aggregation != "seq-mean-token-mean":
        return [scale] * len(episodes)
    return [scale * (count / max(1, totals[episode])) for episode, count in zip(episodes, tokens, strict=True)]
