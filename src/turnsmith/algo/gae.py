"""Generalized advantage estimation over model tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from turnsmith.algo.discounting import lambda_returns
from turnsmith.algo.episodes import all_finite, nonfinite_episodes, zero_episodes
from turnsmith.algo.shapes import as_mask, require_same_shape, working_dtype
from turnsmith.algo.whitening import whiten_


def compute_gae_advantage_return(
    token_level_rewards: Tensor,
    values: Tensor,
    response_mask: Tensor,
    gamma: float,
    lam: float,
    *,
    whiten: bool = True,
) -> tuple[Tensor, Tensor]:
    """GAE (Schulman et al. 2016, https://arxiv.org/abs/1506.02438) over the model tokens of each episode.

    Let t+1 be the next model token after t, whatever observations lie between, and V = A = 0 after the last one:

        delta_t = r_t + gamma V_{t+1} - V_t
        A_t     = delta_t + gamma lam A_{t+1}
        R_t     = A_t + V_t

    A reward on an observation token belongs to the last model token before it. verl 0.9.1 loses it, and leaves numbers
    other than 0 in the advantages of observation tokens.
    An episode with a NaN or infinite reward gets A = 0 and R = V and is left out of the whitening (see
    `nonfinite_episodes`). A value that is not finite on a model token is not hidden: the advantages become NaN.

    Args:
        token_level_rewards: r `(batch, time)`.
        values: V `(batch, time)`; read on model tokens only.
        response_mask: `(batch, time)`, 1 on model tokens.
        gamma: Discount from one model token to the next.
        lam: Trades bias (0) for variance (1).
        whiten: Shift and scale the advantages to mean 0 and variance 1 over the batch's model tokens, as verl does.

    Returns:
        Advantages A and returns R, `(batch, time)`, 0 outside the mask.

    Example:
        >>> rewards = torch.tensor([[0.0, 0.0, 1.0]])  # on an observation token
        >>> mask = torch.tensor([[1, 1, 0]])
        >>> compute_gae_advantage_return(rewards, torch.zeros(1, 3), mask, 0.5, 1.0, whiten=False)[0]
        tensor([[0.5000, 1.0000, 0.0000]])
    """
    require_same_shape(token_level_rewards=token_level_rewards, values=values, response_mask=response_mask)
    with torch.no_grad():
        dtype = working_dtype(token_level_rewards, values)
        values, bad = values.to(dtype), nonfinite_episodes(token_level_rewards)
        # `lambda_returns` multiplies by the mask, which is twice as fast as selecting by it but keeps a NaN.
        if not all_finite(values):
            values = values.masked_fill(response_mask == 0, 0.0)
        rewards, mask = zero_episodes(token_level_rewards.to(dtype), bad), zero_episodes(response_mask, bad)
        advantages, returns = lambda_returns(rewards, values, mask, gamma, lam)
        if bool(bad.any()):
            returns = torch.where(bad.unsqueeze(-1), values * as_mask(response_mask, dtype), returns)
        return (whiten_(advantages, mask) if whiten else advantages), returns
