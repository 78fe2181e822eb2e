"""Group-relative advantages: GRPO and Dr. GRPO."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import torch
from torch import Tensor

from turnsmith.algo.episodes import episode_scores
from turnsmith.algo.groups import group_deviations, group_numbers, to_tokens
from turnsmith.algo.shapes import require_same_shape, working_dtype


def compute_grpo_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Tensor | Iterable[Hashable],
    normalise_by_std: bool = True,
    epsilon: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    """GRPO (Shao et al. 2024, https://arxiv.org/abs/2402.03300): each episode's score, standardised within its group.

    With s_i the sum of the rewards of episode i, and mean and std (with n - 1) over the finite s of its group:

        A_{i,t} = (s_i - mean) / (std + epsilon)   on model tokens

    Here equal rewards and a group of one give exactly 0, and a reward that is not finite takes out only its own episode
    (see `nonfinite_episodes`). verl 0.9.1 gives advantages up to 0.9 to equal rewards and the raw reward to a group of
    one, and one NaN makes its whole group NaN.

    Args:
        token_level_rewards: r `(batch, time)`; rewards on observation tokens count too.
        response_mask: `(batch, time)`, 1 on model tokens.
        index: Group of each episode, `(batch,)`: a tensor, a numpy array or a list, of integers or strings.
        normalise_by_std: Divide by the group's standard deviation; without it this is Dr. GRPO.
        epsilon: Added to the standard deviation.

    Returns:
        Advantages `(batch, time)`, and the same tensor again as returns.

    Example:
        >>> rewards = torch.tensor([[0.0, 1.0], [0.0, 3.0], [0.0, 5.0]])
        >>> advantages, _ = compute_grpo_advantage(rewards, torch.ones(3, 2), ["a", "a", "b"])
        >>> advantages[:, 0]
        tensor([-0.7071,  0.7071,  0.0000])
    """
    require_same_shape(token_level_rewards=token_level_rewards, response_mask=response_mask)
    with torch.no_grad():
        group = group_numbers(index, token_level_rewards)
        compared = group_deviations(episode_scores(token_level_rewards), group)
        scaled = compared.scaled(normalise_by_std, epsilon)
        advantages = to_tokens(scaled, response_mask, working_dtype(token_level_rewards))
    return advantages, advantages


def compute_dr_grpo_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: Tensor | Iterable[Hashable]
) -> tuple[Tensor, Tensor]:
    """Dr. GRPO (Liu et al. 2025, https://arxiv.org/abs/2503.20783): GRPO without the division by the std.

        A_{i,t} = s_i - mean

    Dividing by the std gives more weight to groups with nearly equal scores, which is a bias. The paper's other change
    is in the loss: average with "seq-mean-token-sum-norm", so that tokens of long episodes do not weigh less.

    Args and returns as in `compute_grpo_advantage`.

    Example:
        >>> compute_dr_grpo_advantage(torch.tensor([[1.0], [3.0]]), torch.ones(2, 1), [0, 0])[0].T
        tensor([[-1.,  1.]])
    """
    return compute_grpo_advantage(token_level_rewards, response_mask, index, normalise_by_std=False)
