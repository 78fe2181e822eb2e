"""The weights that turn a mean over the rows of a batch into a mean over its episodes.

An episode with several segments has several rows, and verl fills a batch up with rows without tokens. verl's losses
count rows; multiplied by these weights, their gradients count episodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence


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
