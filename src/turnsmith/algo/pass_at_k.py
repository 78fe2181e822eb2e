"""GRPO for pass@k: only the best episode of each group gets an advantage."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import torch
from torch import Tensor

from turnsmith.algo.episodes import episode_scores
from turnsmith.algo.groups import group_deviations, group_numbers, over_group, to_tokens
from turnsmith.algo.shapes import require_same_shape, working_dtype


def compute_pass_at_k_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Tensor | Iterable[Hashable],
    normalise_by_std: bool = True,
    epsilon: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    """GRPO for pass@k (Tang et al. 2025, https://arxiv.org/abs/2503.19595): the lead of the best over the second best.

    With s_i the sum of the rewards of episode i, over the finite s of its group:

        A_{i,t} = (s_i - second best) / (std + epsilon)   on the model tokens of the best episode, else 0

    A group of one gives 0 (verl 0.9.1 raises), and so does a tie for the best.

    Args and returns as in `compute_grpo_advantage`.

    Example:
        >>> rewards = torch.tensor([[1.0], [3.0], [2.5]])
        >>> compute_pass_at_k_advantage(rewards, torch.ones(3, 1), [0, 0, 0], normalise_by_std=False)[0].T
        tensor([[0.0000, 0.5000, 0.0000]])
    """
    require_same_shape(token_level_rewards=token_level_rewards, response_mask=response_mask)
    with torch.no_grad():
        group = group_numbers(index, token_level_rewards)
        scores = episode_scores(token_level_rewards)
        score = scores.where(torch.isfinite(scores), -torch.inf)
        is_best = score == over_group(score, group, "amax")
        second = over_group(score.where(~is_best, -torch.inf), group, "amax")
        # In a tie `second` is the third best, and the lead over it must not count.
        is_alone = over_group(is_best.to(score.dtype), group) == 1
        leads = is_best & is_alone & torch.isfinite(second)
        lead = (score - second).where(leads, 0.0)
        if normalise_by_std:
            lead = lead / (group_deviations(scores, group).std + epsilon)
        advantages = to_tokens(lead, response_mask, working_dtype(token_level_rewards))
    return advantages, advantages
