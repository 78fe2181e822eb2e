"""GiGPO: a group of episodes, and inside it groups of turns that started from the same observation."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import torch
from torch import Tensor

from turnsmith.algo.episodes import episode_scores
from turnsmith.algo.groups import Deviations, group_deviations
from turnsmith.algo.shapes import require_same_shape, working_dtype
from turnsmith.algo.turn_returns import episode_groups, turn_returns
from turnsmith.algo.turns import find_turns


def compute_gigpo_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Tensor | Iterable[Hashable],
    anchors: Tensor,
    gamma: float,
    *,
    step_weight: float = 1.0,
    normalize: bool = True,
    epsilon: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    """GiGPO (Feng et al. 2025, https://arxiv.org/abs/2505.10978): GRPO, plus GRPO among turns of one observation.

    With s_i the sum of the rewards of episode i, G_{i,k} = r_{i,k} + gamma G_{i,k+1} its return from turn k on, and the
    anchor group of a turn all turns of its group's episodes that started from the same observation:

        A^E_i     = (s_i - mean of its group) / (std of its group + epsilon)
        A^S_{i,k} = (G_{i,k} - mean of its anchor group) / (std of its anchor group + epsilon)
        A_{i,t}   = A^E_i + step_weight A^S_{i,k}   on every model token t of turn k

    std is with n - 1, and 1 instead of (std + epsilon) if not `normalize`.

    Bias: as GRPO's in both parts, as mean and std contain the turn itself. Without `normalize` an anchor group of m
    episodes shrinks the gradient of its turns by (m - 1)/m, so that observations that few episodes reach weigh less;
    and where an episode comes back to an observation, its own later return is part of its baseline.

    Equal rewards give exactly 0 in both parts, a group of one and an anchor group of one give 0 in theirs. An episode
    with a reward that is not finite gets 0 and is part of no mean (see `nonfinite_episodes`).

    Args:
        token_level_rewards: r `(batch, time)`.
        response_mask: `(batch, time)`, 1 on model tokens; a run of 1s is a turn.
        index: Group of each episode, `(batch,)`: a tensor, a numpy array or a list, of numbers or of names.
        anchors: `(batch, time)`, int64, read at the first token of each turn: the number of the observation that the
            turn started from. Equal numbers are equal observations; they are compared within a group only.
        gamma: Discount from one turn to the next, in the step part.
        step_weight: Weight of the step part; the paper's omega.
        normalize: Divide by the standard deviations.
        epsilon: Added to the standard deviations.

    Returns:
        Advantages `(batch, time)`, 0 outside the mask, and the same tensor again as returns.

    Example:
        >>> mask = torch.tensor([[1, 0, 1], [1, 0, 1]])
        >>> rewards = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
        >>> anchors = torch.tensor([[7, 0, 8], [7, 0, 9]])  # one start, then two different observations
        >>> compute_gigpo_advantage(rewards, mask, [0, 0], anchors, 1.0, normalize=False)[0]
        tensor([[ 1.0000,  0.0000,  0.5000],
                [-1.0000, -0.0000, -0.5000]])
    """
    require_same_shape(token_level_rewards=token_level_rewards, response_mask=response_mask, anchors=anchors)
    with torch.no_grad():
        group = episode_groups(index, token_level_rewards)
        turns = find_turns(response_mask)
        returns, healthy = turn_returns(token_level_rewards, turns, gamma)
        row, _ = healthy.nonzero(as_tuple=True)
        anchor_group = _pairs(group[row], turns.first(anchors)[healthy])
        episode = group_deviations(episode_scores(token_level_rewards), group)
        step = group_deviations(returns[healthy], anchor_group)
        advantages = torch.zeros_like(returns)
        advantages[healthy] = _scaled(episode, normalize, epsilon)[row] + step_weight * _scaled(
            step, normalize, epsilon
        )
        tokens = turns.to_tokens(advantages, working_dtype(token_level_rewards))
    return tokens, tokens


def _scaled(compared: Deviations, normalize: bool, epsilon: float) -> Tensor:
    return compared.deviation / (compared.std + epsilon) if normalize else compared.deviation


def _pairs(one: Tensor, other: Tensor) -> Tensor:
    """A number from 0 for each pair."""
    names, number = torch.unique(other, return_inverse=True)
    return torch.unique(one * max(len(names), 1) + number, return_inverse=True)[1]
