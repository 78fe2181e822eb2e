"""Turn-level advantages without a critic: each turn's return, compared with other episodes' returns at that turn."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Literal, get_args

import torch
from torch import Tensor

from turnsmith.algo.discounting import lambda_returns
from turnsmith.algo.episodes import nonfinite_episodes, zero_episodes
from turnsmith.algo.groups import group_deviations, group_numbers, over_group
from turnsmith.algo.shapes import require_same_shape, working_dtype
from turnsmith.algo.turns import Turns, find_turns

TurnScale = Literal["none", "group", "batch"]
"""What the advantages are normalised over."""


def compute_turn_return_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Tensor | Iterable[Hashable],
    gamma: float,
    *,
    scale: TurnScale = "none",
    epsilon: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    """RLOO for each turn: its reward-to-go minus the mean reward-to-go of the group's other episodes at the same turn.

    RLOO is Ahmadian et al. 2024 (https://arxiv.org/abs/2402.14740), reward-to-go is REINFORCE's (Williams 1992). With
    r_{i,k} the rewards of turn k of episode i and of the observation after it, and O_{i,k} the other episodes of its
    group that reached turn k:

        G_{i,k} = r_{i,k} + gamma G_{i,k+1}
        b_{i,k} = mean of G_{j,k} over j in O_{i,k}
        A_{i,t} = G_{i,k} - b_{i,k}   on every model token t of turn k

    If no other episode reached turn k, b is the mean of the others' returns at their last turns. A baseline of 0 would
    be unbiased too, but would give the longest episode its raw return even where all episodes earned the same.

    Bias: none for scale "none", even where the policy decides when to stop, because b depends on the other episodes
    only. (A mean that includes the episode itself shrinks late turns that few episodes reach.) "group" divides by
    sqrt(sum of A^2 / (turns of the group - 1)), which includes the episode's own return and gives more weight to groups
    with nearly equal returns; for episodes of one turn it is GRPO. "batch" divides by one such number for the whole
    batch: it changes the length of the gradient but not its direction, and its bias falls with the batch size.
    gamma < 1 is, as everywhere, an intended bias towards early rewards.

    Equal rewards give exactly 0, and so does a group of one. An episode with a reward that is not finite gets A = G = 0
    and enters no baseline (see `nonfinite_episodes`).

    Args:
        token_level_rewards: r `(batch, time)`; rewards before the first model token belong to no turn.
        response_mask: `(batch, time)`, 1 on model tokens; a run of 1s is a turn.
        index: Group of each episode, `(batch,)`: a tensor, a numpy array or a list, of integers or strings.
        gamma: Discount from one turn to the next.
        scale: "none", "group" or "batch".
        epsilon: Added to the divisor.

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
        raise ValueError(f"unknown scale {scale!r}; use one of {', '.join(get_args(TurnScale))}")
    with torch.no_grad():
        dtype = working_dtype(token_level_rewards)
        group = group_numbers(index, token_level_rewards)
        turns = find_turns(response_mask)
        returns, valid = turn_returns(token_level_rewards, turns, gamma)
        advantages = torch.zeros_like(returns)
        advantages[valid] = _deviations(returns, valid, group)
        if scale != "none":
            over = group if scale == "group" else torch.zeros_like(group)
            advantages /= _root_mean_square(advantages, valid, over).unsqueeze(-1) + epsilon
        return turns.to_tokens(advantages, dtype), turns.to_tokens(returns, dtype)


def turn_returns(token_level_rewards: Tensor, turns: Turns, gamma: float) -> tuple[Tensor, Tensor]:
    """The return of each turn, G_k = r_k + gamma G_{k+1}, and which turns are valid.

    A turn is valid if it exists and all rewards of its episode are finite. Both tensors are `(batch, turns)`; G is 0
    where there is no valid turn.

    Example:
        >>> turns = find_turns(torch.tensor([[1, 0, 1], [1, 0, 0]]))
        >>> turn_returns(torch.tensor([[0.0, 1.0, 4.0], [0.0, 0.0, float("nan")]]), turns, gamma=0.5)
        (tensor([[3., 4.],
                [0., 0.]], dtype=torch.float64), tensor([[ True,  True],
                [False, False]]))
    """
    bad = nonfinite_episodes(token_level_rewards)
    rewards, valid = zero_episodes(turns.sum(token_level_rewards), bad), zero_episodes(turns.exists, bad)
    return lambda_returns(rewards, None, valid, gamma, 1.0)[1], valid


def _deviations(returns: Tensor, valid: Tensor, group: Tensor) -> Tensor:
    """G_{i,k} - b_{i,k} of the valid turns, in their order."""
    row, turn = valid.nonzero(as_tuple=True)
    own = returns[valid]
    compared = group_deviations(own, group[row] * valid.shape[1] + turn)
    deviation = compared.leave_one_out()
    alone = compared.count == 1
    if bool(alone.any()):
        last = turn + 1 == valid.sum(dim=1)[row]
        deviation[alone] = _against_last_turns(own, row, group[row], last, alone)
    return deviation


def _against_last_turns(own: Tensor, row: Tensor, group: Tensor, last: Tensor, alone: Tensor) -> Tensor:
    """For turns that only one episode of its group reached: G_{i,k} - mean of the others' last G; 0 without others.

    All tensors are `(valid turns,)`. A group has at most one such episode, its longest.
    """
    is_longest = over_group(alone.to(own.dtype), row) > 0
    others = last & ~is_longest
    weights = others.to(own.dtype)
    # With weight 0 the lone turns are compared with the mean without entering it; NaN leaves out all other turns.
    deviation = group_deviations(own.where(others | alone, torch.nan), group, weights).deviation
    return deviation.where(over_group(weights, group) > 0, 0.0)[alone]


def _root_mean_square(advantages: Tensor, valid: Tensor, group: Tensor) -> Tensor:
    """sqrt(sum of A^2 / (turns - 1)) over the turns of each episode's group, `(batch,)`."""
    squares = over_group(advantages.square().sum(dim=1), group)
    turns = over_group(valid.sum(dim=1, dtype=torch.float64), group)
    return (squares / (turns - 1).clamp(min=1)).sqrt()
