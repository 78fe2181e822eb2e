"""RLOO: REINFORCE with the mean of the group's other episodes as the baseline."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import torch
from torch import Tensor

from turnsmith.algo.episodes import episode_scores
from turnsmith.algo.groups import group_deviations, group_numbers, to_tokens
from turnsmith.algo.shapes import require_same_shape, working_dtype


def compute_rloo_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: Tensor | Iterable[Hashable]
) -> tuple[Tensor, Tensor]:
    """RLOO (Ahmadian et al. 2024, https://arxiv.org/abs/2402.14740): leave one out.

    With s_i the sum of the rewards of episode i, in a group of n finite scores:

        A_{i,t} = s_i - 1/(n-1) sum_{j != i} s_j = n/(n-1) (s_i - mean)   on model tokens

    The baseline does not depend on episode i, so the policy gradient is unbiased. A group of one gives 0 (verl's looped
    version: the raw reward), equal rewards give exactly 0, and a reward that is not finite takes out only its own
    episode (see `nonfinite_episodes`).

    Args:
        token_level_rewards: r `(batch, time)`; rewards on observation tokens count too.
        response_mask: `(batch, time)`, 1 on model tokens.
        index: Group of each episode, `(batch,)`: a tensor, a numpy array or a list, of integers or strings.

    Returns:
        Advantages `(batch, time)`, and the same tensor again as returns.

    Example:
        >>> compute_rloo_advantage(torch.tensor([[1.0], [3.0]]), torch.ones(2, 1), [0, 0])[0].T
        tensor([[-2.,  2.]])
    """
    require_same_shape(token_level_rewards=token_level_rewards, response_mask=response_mask)
    with torch.no_grad():
        group = group_numbers(index, token_level_rewards)
        compared = group_deviations(episode_scores(token_level_rewards), group)
        advantages = to_tokens(compared.leave_one_out(), response_mask, working_dtype(token_level_rewards))
    return advantages, advantages
