"""The score of each episode, and which episodes cannot be trained on because a reward is NaN or infinite."""

from __future__ import annotations

import torch
from torch import Tensor

from turnsmith.algo.shapes import row_slices


def episode_scores(token_level_rewards: Tensor) -> Tensor:
    """Score of each episode: s_i = sum_t r_{i,t}, over all positions, in float64.

    Rewards on observation tokens count too. In float64 the sum of float32 rewards does not depend on where they lie, so
    episodes with the same rewards have exactly the same score.

    Args:
        token_level_rewards: `(batch, time)`.

    Returns:
        Scores `(batch,)`, float64.

    Example:
        >>> episode_scores(torch.tensor([[0.0, 1.0, 0.5], [0.0, float("nan"), 0.0]]))
        tensor([1.5000,    nan], dtype=torch.float64)
    """
    scores = torch.empty(token_level_rewards.shape[0], dtype=torch.float64, device=token_level_rewards.device)
    with torch.no_grad():
        # torch converts before it sums. A float64 copy of a few rows stays in the cache, which is ten times faster
        # than one of the whole batch.
        for rows in row_slices(token_level_rewards):
            torch.sum(token_level_rewards[rows], dim=-1, dtype=torch.float64, out=scores[rows])
    return scores


def nonfinite_episodes(token_level_rewards: Tensor) -> Tensor:
    """Which episodes have a NaN or infinite reward. Every estimator here leaves out exactly these.

    Such an episode gets advantage 0 on all its tokens and enters no mean or standard deviation, so it affects no other
    episode. Count them for metrics with `nonfinite_episodes(rewards).sum()`. To keep their tokens out of the
    denominators of a loss too, multiply the mask: `response_mask * ~nonfinite_episodes(rewards)[:, None]`.

    Args:
        token_level_rewards: `(batch, time)`.

    Returns:
        `(batch,)`, bool.

    Example:
        >>> nonfinite_episodes(torch.tensor([[0.0, 1.0], [float("inf"), 0.0]]))
        tensor([False,  True])
    """
    return ~torch.isfinite(episode_scores(token_level_rewards))


def zero_episodes(tensor: Tensor, episodes: Tensor) -> Tensor:
    """The tensor with 0 (or False) in the rows of these episodes; no copy if there are none.

    Example:
        >>> zero_episodes(torch.ones(2, 3, dtype=torch.bool), torch.tensor([False, True]))
        tensor([[ True,  True,  True],
                [False, False, False]])
    """
    return tensor.masked_fill(episodes.unsqueeze(-1), 0) if bool(episodes.any()) else tensor


def all_finite(tensor: Tensor) -> bool:
    """Whether the tensor has neither NaN nor infinity; reads it once and makes no copy.

    Example:
        >>> all_finite(torch.tensor([1.0, float("-inf"), float("inf")])), all_finite(torch.tensor([3e38, 3e38]))
        (False, True)
    """
    # A finite sum has only finite terms. The converse is false, because large terms may overflow: then look again.
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())
