"""REINFORCE++: discounted returns, whitened over the batch; and its variant with a group baseline."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import torch
from torch import Tensor

from turnsmith.algo.discounting import lambda_returns
from turnsmith.algo.episodes import episode_scores, nonfinite_episodes, zero_episodes
from turnsmith.algo.groups import group_deviations, group_numbers, to_tokens
from turnsmith.algo.shapes import require_same_shape, working_dtype
from turnsmith.algo.whitening import whiten_


def compute_reinforce_plus_plus_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, gamma: float = 1.0
) -> tuple[Tensor, Tensor]:
    """REINFORCE++ (Hu et al. 2025, https://arxiv.org/abs/2501.03262): the return, whitened over the whole batch.

    Let t+1 be the next model token after t:

        G_t = r_t + gamma G_{t+1}
        A_t = (G_t - mean) / sqrt(var + 1e-8)   over all model tokens of the batch

    A reward on an observation token belongs to the last model token before it (verl 0.9.1 loses it). An episode with a
    reward that is not finite gets A = G = 0 and is left out of mean and variance (see `nonfinite_episodes`).

    Args:
        token_level_rewards: r `(batch, time)`.
        response_mask: `(batch, time)`, 1 on model tokens.
        gamma: Discount from one model token to the next.

    Returns:
        Advantages A and returns G, `(batch, time)`, 0 outside the mask.

    Example:
        >>> rewards, mask = torch.tensor([[0.0, 0.0, 8.0]]), torch.tensor([[1, 1, 0]])
        >>> compute_reinforce_plus_plus_advantage(rewards, mask, gamma=0.5)
        (tensor([[-0.7071,  0.7071,  0.0000]]), tensor([[4., 8., 0.]]))
    """
    require_same_shape(token_level_rewards=token_level_rewards, response_mask=response_mask)
    with torch.no_grad():
        bad = nonfinite_episodes(token_level_rewards)
        rewards = zero_episodes(token_level_rewards.to(working_dtype(token_level_rewards)), bad)
        mask = zero_episodes(response_mask, bad)
        _, returns = lambda_returns(rewards, None, mask, gamma, 1.0)
        return whiten_(returns.clone(), mask), returns


def compute_reinforce_plus_plus_baseline_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: Tensor | Iterable[Hashable]
) -> tuple[Tensor, Tensor]:
    """REINFORCE++-baseline (same paper): subtract the group's mean, then whiten over the whole batch.

        A_{i,t} = whiten(s_i - mean of its group)   over all model tokens of the batch

    Unlike GRPO it divides by one standard deviation for the whole batch. Equal rewards in every group give exactly 0.
    In a single group, as in a group of one, they give 0 minus the mean over the batch's tokens, which is 0 only if all
    episodes have the same length.

    Args:
        token_level_rewards: r `(batch, time)`.
        response_mask: `(batch, time)`, 1 on model tokens.
        index: Group of each episode, `(batch,)`: a tensor, a numpy array or a list, of integers or strings.

    Returns:
        Advantages `(batch, time)`, and the same tensor again as returns.

    Example:
        >>> rewards = torch.tensor([[1.0], [3.0]])
        >>> compute_reinforce_plus_plus_baseline_advantage(rewards, torch.ones(2, 1), [0, 0])[0].T
        tensor([[-0.7071,  0.7071]])
    """
    require_same_shape(token_level_rewards=token_level_rewards, response_mask=response_mask)
    with torch.no_grad():
        scores = episode_scores(token_level_rewards)
        compared = group_deviations(scores, group_numbers(index, token_level_rewards))
        mask = zero_episodes(response_mask, ~torch.isfinite(scores))
        advantages = whiten_(to_tokens(compared.deviation, mask, working_dtype(token_level_rewards)), mask)
    return advantages, advantages
