"""Advantages, losses and KL as plain functions of tensors: no config, no batch object, no distribution.

Training uses the advantage estimators: `trainer/advantages.py` picks one, and verl calls it in every step. Training
does not use the losses and the KL here (`compute_policy_loss`, `compute_value_loss`, `aggregate_loss`,
`kl_estimate`, `apply_kl_penalty`, `KLController`), but verl's own. Ours are reference implementations for reading,
tests and analysis; `tests/unit/algo/test_against_verl.py` checks that they agree with verl's.

Every docstring gives the formula, the shapes and the paper. Shapes are `(batch, time)`: a row is an episode, and
`response_mask` is 1 on tokens that the model sampled and 0 on observations and padding.

Example:
    >>> import torch
    >>> from turnsmith import algo
    >>> rewards = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    >>> advantages, _ = algo.compute_rloo_advantage(rewards, torch.ones(2, 2), index=["start", "start"])
    >>> advantages
    tensor([[ 1.,  1.],
            [-1., -1.]])
"""

from turnsmith.algo.episodes import episode_scores, nonfinite_episodes
from turnsmith.algo.gae import compute_gae_advantage_return
from turnsmith.algo.gigpo import compute_gigpo_advantage
from turnsmith.algo.grpo import compute_dr_grpo_advantage, compute_grpo_advantage
from turnsmith.algo.opo import compute_opo_advantage
from turnsmith.algo.pass_at_k import compute_pass_at_k_advantage
from turnsmith.algo.reference.aggregation import Aggregation, aggregate_loss
from turnsmith.algo.reference.kl import KLEstimator, apply_kl_penalty, kl_estimate
from turnsmith.algo.reference.kl_controller import KLController
from turnsmith.algo.reference.policy_loss import compute_policy_loss
from turnsmith.algo.reference.value_loss import compute_value_loss
from turnsmith.algo.reinforce_plus_plus import (
    compute_reinforce_plus_plus_advantage,
    compute_reinforce_plus_plus_baseline_advantage,
)
from turnsmith.algo.rloo import compute_rloo_advantage
from turnsmith.algo.turn_gae import compute_turn_gae_advantage_return
from turnsmith.algo.turn_returns import TurnScale, compute_turn_return_advantage
from turnsmith.algo.whitening import whiten

__all__ = [
    "compute_gae_advantage_return",
    "compute_grpo_advantage",
    "compute_dr_grpo_advantage",
    "compute_rloo_advantage",
    "compute_opo_advantage",
    "compute_pass_at_k_advantage",
    "compute_reinforce_plus_plus_advantage",
    "compute_reinforce_plus_plus_baseline_advantage",
    "compute_turn_return_advantage",
    "compute_turn_gae_advantage_return",
    "compute_gigpo_advantage",
    "compute_policy_loss",
    "compute_value_loss",
    "apply_kl_penalty",
    "kl_estimate",
    "KLController",
    "aggregate_loss",
    "nonfinite_episodes",
    "episode_scores",
    "whiten",
    "Aggregation",
    "KLEstimator",
    "TurnScale",
]
