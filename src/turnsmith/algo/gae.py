"""Generalized advantage estimation over model tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from turnsmith.algo.discounting import lambda_returns
from turnsmith.algo.episodes import all_finite, nonfinite_episodes
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

    A reward on a token that the model did not sample belongs to the last model token before it. verl 0.9.1 loses it,
    and leaves numbers other than 0 in the advantages of observation tokens.
    An episode with a NaN or infinite reward gets A = 0 and R = V and is left out of the whitening (see
    `nonfinite_episodes`). Values that are not finite on model tokens are not hidden: the advantages become NaN.

    Args:
        token_level_rewards: r `(batch, time)`.
        values: V `(batch, time)`; read on model tokens only.
        response_mask: `(batch, time)`, 1 on model tokens.
        gamma: Discount from one model token to the next.
        lam: Trade of bias (0) against variance (1).
        whiten: Scale the advantages to mean 0 and variance 1 over the model tokens of the batch, as verl does.

    Returns:
        Advantages A and returns R, `(batch, time)`, 0 outside the mask.

    Example:
        >>> rewards = torch.tensor([[0.0, 0.0, 1.0]])  # it sits on an observation
        >>> mask = torch.tensor([[1, 1, 0]])
        >>> compute_gae_advantage_return(rewards, torch.zeros(1, 3), mask, 0.5, 1.0, whiten=False)[0]
        tensor([[0.5000, 1.0000, 0.0000]])
    """
    require_same_shape(token_level_rewards=token_level_rewards, values=values, response_mask=response_mask)
    with torch.no_grad():
        dtype = working_dtype(token_level_rewards, values)
        rewards, values, mask = token_level_rewards.to(dtype), values.to(dtype), response_mask
        # Multiplying by the mask is twice as fast as choosing by it, but keeps a NaN: take those out first, if any.
        if not all_finite(values):
            values = values.masked_fill(mask == 0, 0.0)
        bad = None if all_finite(rewards) else nonfinite_episodes(rewards).unsqueeze(-1)
        if bad is not None:
            rewards, mask = rewards.masked_fill(bad, 0.0), as_mask(mask, dtype).masked_fill(bad, 0.0)
        advantages, returns = lambda_returns(rewards, values, mask, gamma, lam)
        if bad is not None:
            returns = torch.where(bad, values * as_mask(response_mask, dtype), returns)
        return (whiten_(advantages, mask) if whiten else advantages), returns
