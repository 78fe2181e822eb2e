"""OPO: REINFORCE with a baseline that minimises variance."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import torch
from torch import Tensor

from turnsmith.algo.episodes import episode_scores
from turnsmith.algo.groups import group_deviations, group_numbers, to_tokens
from turnsmith.algo.shapes import require_same_shape, working_dtype


def compute_opo_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: Tensor | Iterable[Hashable]
) -> tuple[Tensor, Tensor]:
    """OPO (Hao et al. 2025, https://arxiv.org/abs/2505.23585): the baseline is the group's mean, weighted by length.

    With s_i the sum of the rewards of episode i and l_i its number of model tokens, over the finite s of its group:

        A_{i,t} = s_i - sum_j l_j s_j / sum_j l_j   on model tokens

    Long episodes have large gradients, so the variance-minimising baseline leans towards their scores.

    Args:
        token_level_rewards: r `(batch, time)`; rewards on observation tokens count too.
        response_mask: `(batch, time)`, 1 on model tokens.
        index: Group of each episode, `(batch,)`: a tensor, a numpy array or a list, of integers or strings.

    Returns:
        Advantages `(batch, time)`, and the same tensor again as returns.

    Example:
        >>> mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
        >>> compute_opo_advantage(torch.tensor([[4.0, 0, 0], [0.0, 0, 0]]), mask, [0, 0])[0][:, 0]
        tensor([ 1., -3.])
    """
    require_same_shape(token_level_rewards=token_level_rewards, response_mask=response_mask)
    with torch.no_grad():
        group = group_numbers(index, token_level_rewards)
        lengths = response_mask.sum(dim=-1, dtype=torch.float32)
        compared = group_deviations(episode_scores(token_level_rewards), group, weights=lengths)
        advantages = to_tokens(compared.deviation, response_mask, working_dtype(token_level_rewards))
    return advantages, advantages
