"""Generalized advantage estimation over turns: a turn is one action, however many tokens it has."""

from __future__ import annotations

import torch
from torch import Tensor

from turnsmith.algo.discounting import lambda_returns
from turnsmith.algo.episodes import nonfinite_episodes, zero_episodes
from turnsmith.algo.shapes import require_same_shape, working_dtype
from turnsmith.algo.turns import find_turns
from turnsmith.algo.whitening import whiten_


def compute_turn_gae_advantage_return(
    token_level_rewards: Tensor,
    values: Tensor,
    response_mask: Tensor,
    gamma: float,
    lam: float,
    *,
    whiten: bool = True,
) -> tuple[Tensor, Tensor]:
    """GAE (Schulman et al. 2016, https://arxiv.org/abs/1506.02438) with one step per turn.

    With r_k the rewards of turn k and of the observation after it, V_k the value at the first token of turn k (before
    the model has sampled any of it), and V = A = 0 after the last turn:

        delta_k = r_k + gamma V_{k+1} - V_k
        A_k     = delta_k + gamma lam A_{k+1}
        R_k     = A_k + V_k
        A_t = A_k and R_t = R_k   on every model token t of turn k

    GAE over tokens applies gamma and lam once per token: at lam = 0.95 a turn of 100 tokens hides the next reward
    almost completely (0.95^100 = 0.006), and long turns are discounted more than short ones. Over turns neither depends
    on the number of tokens.

    R_k is the critic's target on every token of the turn. It contains V of later turns only, so it estimates the return
    from inside the turn as well as from its first token; values inside a turn are trained but not read.

    Bias: none at lam = 1, whatever the values, because V_k is known before the turn is sampled; at lam < 1 that of the
    values. Whitening uses a mean and a standard deviation that include the turn itself.

    An episode with a NaN or infinite reward gets A = 0 and R_t = V_t and is left out of the whitening (see
    `nonfinite_episodes`). A value that is not finite at the start of a turn is not hidden: the advantages become NaN.

    Args:
        token_level_rewards: r `(batch, time)`; rewards before the first model token belong to no turn.
        values: V `(batch, time)`; read at the first token of each turn only.
        response_mask: `(batch, time)`, 1 on model tokens; a run of 1s is a turn.
        gamma: Discount from one turn to the next.
        lam: Trades bias (0) for variance (1).
        whiten: Shift and scale the advantages to mean 0 and variance 1 over the batch's model tokens.

    Returns:
        Advantages A and returns R, `(batch, time)`, 0 outside the mask.

    Example:
        >>> rewards, mask = torch.tensor([[0.0, 0.0, 0.0, 0.0, 1.0]]), torch.tensor([[1, 1, 0, 1, 1]])
        >>> values = torch.tensor([[0.5, 9.0, 9.0, 0.75, 9.0]])
        >>> compute_turn_gae_advantage_return(rewards, values, mask, 1.0, 1.0, whiten=False)[0]
        tensor([[0.5000, 0.5000, 0.0000, 0.2500, 0.2500]])
    """
    require_same_shape(token_level_rewards=token_level_rewards, values=values, response_mask=response_mask)
    with torch.no_grad():
        dtype = working_dtype(token_level_rewards, values)
        turns, bad = find_turns(response_mask), nonfinite_episodes(token_level_rewards)
        rewards, exists = zero_episodes(turns.sum(token_level_rewards), bad), zero_episodes(turns.exists, bad)
        turn_tables = lambda_returns(rewards, turns.first(values).double(), exists, gamma, lam)
        advantages, returns = (turns.to_tokens(table, dtype) for table in turn_tables)
        if bool(bad.any()):
            returns = torch.where(bad.unsqueeze(-1) & (response_mask != 0), values.to(dtype), returns)
        return (whiten_(advantages, zero_episodes(response_mask, bad)) if whiten else advantages), returns
