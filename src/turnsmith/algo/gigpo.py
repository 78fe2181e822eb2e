"""GiGPO: compare episodes within their group, and turns with the group's turns that began at the same observation."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import torch
from torch import Tensor

from turnsmith.algo.episodes import episode_scores
from turnsmith.algo.groups import group_deviations, group_numbers
from turnsmith.algo.shapes import require_same_shape, working_dtype
from turnsmith.algo.turn_returns import turn_returns
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
    """GiGPO (Feng et al. 2025, https://arxiv.org/abs/2505.10978): GRPO over episodes plus GRPO over turns.

    With s_i the sum of the rewards of episode i and G_{i,k} = r_{i,k} + gamma G_{i,k+1} its return from turn k on. The
    anchor group of a turn is all turns of its group's episodes that began at the same observation:

        A^E_i     = (s_i - mean of its group) / (std of its group + epsilon)
        A^S_{i,k} = (G_{i,k} - mean of its anchor group) / (std of its anchor group + epsilon)
        A_{i,t}   = A^E_i + step_weight A^S_{i,k}   on every model token t of turn k

    std has n - 1 in its denominator. Without `normalize` nothing is divided by it.

    Bias: as GRPO's in both terms, because mean and std include the turn itself. Without `normalize`, an anchor group of
    m episodes shrinks the gradient of its turns by (m - 1)/m, so observations that few episodes reach weigh less. Where
    an episode returns to an observation, its own later return is part of its baseline.

    Equal rewards give exactly 0 in both terms; a group of one gives 0 in the first, an anchor group of one in the
    second. An episode with a reward that is not finite gets 0 and enters no mean (see `nonfinite_episodes`).

    Args:
        token_level_rewards: r `(batch, time)`.
        response_mask: `(batch, time)`, 1 on model tokens; a run of 1s is a turn.
        index: Group of each episode, `(batch,)`: a tensor, a numpy array or a list, of integers or strings.
        anchors: `(batch, time)`, int64, read at the first token of each turn: identifies the observation that the turn
            began at, such as by a hash. Compared within a group only.
        gamma: Discount from one turn to the next, in the turn term.
        step_weight: Weight of the turn term; the paper's omega.
        normalize: Divide by the standard deviations.
        epsilon: Added to the standard deviations.

    Returns:
        Advantages `(batch, time)`, 0 outside the mask, and the same tensor again as returns.

    Example:
        >>> mask = torch.tensor([[1, 0, 1], [1, 0, 1]])
        >>> rewards = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
        >>> anchors = torch.tensor([[7, 0, 8], [7, 0, 9]])  # the same first observation, then two different ones
        >>> compute_gigpo_advantage(rewards, mask, [0, 0], anchors, 1.0, normalize=False)[0]
        tensor([[ 1.0000,  0.0000,  0.5000],
                [-1.0000, -0.0000, -0.5000]])
    """
    require_same_shape(token_level_rewards=token_level_rewards, response_mask=response_mask, anchors=anchors)
    with torch.no_grad():
        group = group_numbers(index, token_level_rewards)
        turns = find_turns(response_mask)
        returns, valid = turn_returns(token_level_rewards, turns, gamma)
        row, _ = valid.nonzero(as_tuple=True)
        anchor = torch.unique(turns.first(anchors)[valid], return_inverse=True)[1]
        anchor_group = torch.unique(group[row] * anchor.numel() + anchor, return_inverse=True)[1]
        by_episode = group_deviations(episode_scores(token_level_rewards), group).scaled(normalize, epsilon)
        by_turn = group_deviations(returns[valid], anchor_group).scaled(normalize, epsilon)
        advantages = torch.zeros_like(returns)
        advantages[valid] = by_episode[row] + step_weight * by_turn
        tokens = turns.to_tokens(advantages, working_dtype(token_level_rewards))
    return tokens, tokens
