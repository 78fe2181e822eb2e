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
    """GRPO (Shao et al. 2024, https://arxiv.org/abs/2402.03300): an episode against the others of its group.

    With s_i the sum of the rewards of episode i, and mean and std (with n - 1) over the finite s of its group:

        A_{i,t} = (s_i - mean) / (std + epsilon)   on model tokens

    verl 0.9.1 gives advantages up to 0.9 where all rewards of a group are equal, lets one NaN spoil its group, and
    gives a group of one its raw reward. Here equal rewards and a group of one give exactly 0, and a reward that is not
    finite takes out its own episode (see `nonfinite_episodes`).

    Args:
        token_level_rewards: r `(batch, time)`; the reward of an observation token counts too.
        response_mask: `(batch, time)`, 1 on model tokens.
        index: Group of each episode, `(batch,)`: a tensor, a numpy array or a list, of numbers or of names.
        normalise_by_std: Divide by the standard deviation of the group; without it this is Dr. GRPO.
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
        group = group_numbers(index, token_level_rewards.device)
        compared = group_deviations(episode_scores(token_level_rewards), group)
        scale = compared.std + epsilon if normalise_by_std else torch.ones_like(compared.std)
        advantages = to_tokens(compared.deviation / scale, response_mask, working_dtype(token_level_rewards))
    return advantages, advantages


def compute_dr_grpo_advantage(
    token_level_rewards: Tensor, response_mask: Tensor, index: Tensor | Iterable[Hashable]
) -> tuple[Tensor, Tensor]:
    """Dr. GRPO (Liu et al. 2025, https://arxiv.org/abs/2503.20783): GRPO without the division by the std.

        A_{i,t} = s_i - mean

    The division weighs groups by how even their scores are, which is a bias. The paper's other half is the loss:
    average with "seq-mean-token-sum-norm", so that a long episode's tokens do not weigh less.

    Args and returns as in `compute_grpo_advantage`.

    Example:
        >>> compute_dr_grpo_advantage(torch.tensor([[1.0], [3.0]]), torch.ones(2, 1), [0, 0])[0].T
        tensor([[-1.,  1.]])
    """
    return compute_grpo_advantage(token_level_rewards, response_mask, index, normalise_by_std=False)
