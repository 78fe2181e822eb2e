"""Credit by turn without a critic: the discounted return from a turn on, against other episodes' at the same turn."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Literal, get_args

import torch
from torch import Tensor

from turnsmith.algo.discounting import lambda_returns
from turnsmith.algo.episodes import all_finite, nonfinite_episodes
from turnsmith.algo.groups import group_deviations, group_numbers
from turnsmith.algo.shapes import require_same_shape, working_dtype
from turnsmith.algo.turns import Turns, find_turns

TurnScale = Literal["none", "group", "batch"]
"""Over what the advantages of turns are scaled."""


def compute_turn_return_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Tensor | Iterable[Hashable],
    gamma: float,
    *,
    scale: TurnScale = "none",
    epsilon: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    """The return from each turn on, minus what the other episodes of the group got from their k-th turn on.

    It is RLOO (Ahmadian et al. 2024, https://arxiv.org/abs/2402.14740) for each turn, with the reward-to-go of
    REINFORCE (Williams 1992). With r_{i,k} the rewards of turn k of episode i and of the observations after it, and
    O_{i,k} the other episodes of its group that reached turn k:

        G_{i,k} = r_{i,k} + gamma G_{i,k+1}
        b_{i,k} = mean of G_{j,k} over j in O_{i,k}
        A_{i,t} = G_{i,k} - b_{i,k}   on every model token t of turn k

    If nobody else reached turn k, b is the mean of the others' returns from their last turn on. A baseline of 0 would
    be unbiased too, but would give the longest episode its raw return where all episodes earned the same.

    Bias: none for scale "none", also where the policy decides when to stop: b is a function of the other episodes
    only. (A mean that contains the episode itself is not, and shrinks late turns that few reach.) "group" divides by
    sqrt(sum of A^2 / (turns of the group - 1)), which contains the episode's own return and weighs groups by how even
    they are; for episodes of one turn it is GRPO. "batch" divides by one such number for the whole batch: it changes
    the length of the batch's gradient and not its direction, and its bias falls with the size of the batch. gamma < 1
    is, as everywhere, a bias towards early rewards that is wanted.

    Equal rewards give exactly 0 and so does a group of one. An episode with a reward that is not finite gets A = G = 0
    and is nobody's baseline (see `nonfinite_episodes`).

    Args:
        token_level_rewards: r `(batch, time)`. One before the first model token belongs to no turn.
        response_mask: `(batch, time)`, 1 on model tokens; a run of 1s is a turn.
        index: Group of each episode, `(batch,)`: a tensor, a numpy array or a list, of numbers or of names.
        gamma: Discount from one turn to the next.
        scale: "none", "group" or "batch".
        epsilon: Added to what is divided by.

    Returns:
        Advantages A and returns G, `(batch, time)`, 0 outside the mask.

    Example:
        >>> mask = torch.tensor([[1, 1, 0, 1], [1, 1, 0, 1]])
        >>> rewards = torch.tensor([[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 3.0]])
        >>> compute_turn_return_advantage(rewards, mask, ["start", "start"], gamma=1.0)[0]
        tensor([[-2., -2., -0., -3.],
                [ 2.,  2.,  0.,  3.]])
    """
    require_same_shape(token_level_rewards=token_level_rewards, response_mask=response_mask)
    if scale not in get_args(TurnScale):
        raise ValueError(f"there is no scale {scale!r}; there are {', '.join(get_args(TurnScale))}")
    with torch.no_grad():
        dtype = working_dtype(token_level_rewards)
        group = episode_groups(index, token_level_rewards)
        turns = find_turns(response_mask)
        returns, healthy = turn_returns(token_level_rewards, turns, gamma)
        advantages = torch.zeros_like(returns)
        advantages[healthy] = _deviations(returns, healthy, group)
        if scale != "none":
            together = group if scale == "group" else torch.zeros_like(group)
            advantages /= _spread(advantages, healthy, together).unsqueeze(-1) + epsilon
        return turns.to_tokens(advantages, dtype), turns.to_tokens(returns, dtype)


def episode_groups(index: Tensor | Iterable[Hashable], token_level_rewards: Tensor) -> Tensor:
    """Group of each episode as a number from 0, one for each row of the rewards.

    Example:
        >>> episode_groups(["a"], torch.zeros(2, 3))
        Traceback (most recent call last):
        ValueError: index has 1 entries, but the batch has 2 episodes
    """
    group = group_numbers(index, token_level_rewards.device)
    if group.shape != token_level_rewards.shape[:1]:
        raise ValueError(
            f"index has {group.numel()} entries, but the batch has {token_level_rewards.shape[0]} episodes"
        )
    return group


def turn_returns(token_level_rewards: Tensor, turns: Turns, gamma: float) -> tuple[Tensor, Tensor]:
    """G_k = r_k + gamma G_{k+1} of each turn, and which turns are there and of an episode with finite rewards.

    Both `(batch, turns)`; G is 0 where there is no such turn.

    Example:
        >>> turns = find_turns(torch.tensor([[1, 0, 1], [1, 0, 0]]))
        >>> turn_returns(torch.tensor([[0.0, 1.0, 4.0], [0.0, 0.0, float("nan")]]), turns, gamma=0.5)
        (tensor([[3., 4.],
                [0., 0.]], dtype=torch.float64), tensor([[ True,  True],
                [False, False]]))
    """
    rewards, healthy = turns.sum(token_level_rewards), turns.exists
    if not all_finite(token_level_rewards):
        bad = nonfinite_episodes(token_level_rewards).unsqueeze(-1)
        rewards, healthy = rewards.masked_fill(bad, 0.0), healthy & ~bad
    return lambda_returns(rewards, None, healthy, gamma, 1.0)[1], healthy


def _deviations(returns: Tensor, healthy: Tensor, group: Tensor) -> Tensor:
    """G_{i,k} - b_{i,k} of the healthy turns, in their order."""
    row, turn = healthy.nonzero(as_tuple=True)
    own = returns[healthy]
    compared = group_deviations(own, group[row] * healthy.shape[1] + turn)
    deviation = compared.deviation * (compared.count / (compared.count - 1).clamp(min=1))
    alone = compared.count == 1
    if bool(alone.any()):
        last = turn + 1 == healthy.sum(dim=1)[row]
        deviation[alone] = _against_last_turns(own, row, group[row], last, alone)
    return deviation


def _against_last_turns(own: Tensor, row: Tensor, group: Tensor, last: Tensor, alone: Tensor) -> Tensor:
    """For turns that one episode of its group reached alone: G_{i,k} - mean of the others' last G; 0 without others.

    All of shape `(turns,)`. A group has one such episode at most, the longest.
    """
    longest = torch.zeros(int(row.max()) + 1, dtype=torch.bool, device=row.device)
    longest[row[alone]] = True
    others = last & ~longest[row]
    # The lone turns take part with weight 0: they are compared, and are no part of the mean.
    weights = torch.cat([torch.ones_like(own[others]), torch.zeros_like(own[alone])])
    compared = group_deviations(
        torch.cat([own[others], own[alone]]), torch.cat([group[others], group[alone]]), weights
    ).deviation[-int(alone.sum()) :]
    with_others = torch.zeros(int(group.max()) + 1, dtype=torch.bool, device=row.device)
    with_others[group[others]] = True
    return compared.where(with_others[group[alone]], 0.0)


def _spread(advantages: Tensor, healthy: Tensor, group: Tensor) -> Tensor:
    """sqrt(sum of A^2 / (turns - 1)) over the turns of each episode's group, `(batch,)`."""
    squares, count = advantages.square().sum(dim=1), healthy.sum(dim=1, dtype=torch.float64)
    empty = squares.new_zeros(int(group.max()) + 1 if group.numel() else 0)
    total, turns = empty.scatter_add(0, group, squares), empty.scatter_add(0, group, count)
    return (total / (turns - 1).clamp(min=1)).sqrt().gather(0, group)
