"""Our functions agree with verl's, but for the faults of verl shown here. The only file here that imports verl."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from turnsmith import algo


@pytest.fixture(scope="module")
def verl() -> ModuleType:
    from verl.trainer.ppo import core_algos

    return core_algos


INDEX = np.array([f"start-{row // 4}" for row in range(32)], dtype=object)


@pytest.fixture
def batch() -> tuple[Tensor, Tensor, Tensor]:
    """Rewards on model tokens only, values, and a mask with observations between turns and padding at the end."""
    torch.manual_seed(0)
    mask = torch.tensor([1] * 6 + [0] * 4 + [1] * 5 + [0] * 3 + [1] * 4 + [0] * 8).repeat(32, 1)
    rewards = torch.randn(32, 30) * (torch.rand(32, 30) < 0.2) * mask
    return rewards, torch.randn(32, 30), mask


def same(ours: Tensor, theirs: Tensor, mask: Tensor) -> None:
    torch.testing.assert_close(ours, theirs * mask, rtol=1e-4, atol=1e-5)


def test_gae_agrees(verl: ModuleType, batch: tuple[Tensor, Tensor, Tensor]) -> None:
    for gamma, lam in ((1.0, 1.0), (0.99, 0.95), (0.9, 0.0)):
        ours = algo.compute_gae_advantage_return(*batch, gamma, lam)
        theirs = verl.compute_gae_advantage_return(*batch, gamma, lam)
        for our_tensor, verl_tensor in zip(ours, theirs, strict=True):
            same(our_tensor, verl_tensor, batch[2])


def test_group_estimators_agree(verl: ModuleType, batch: tuple[Tensor, Tensor, Tensor]) -> None:
    rewards, _, mask = batch
    pairs = [
        (algo.compute_grpo_advantage, verl.compute_grpo_outcome_advantage, {}),
        (algo.compute_dr_grpo_advantage, verl.compute_grpo_outcome_advantage, {"norm_adv_by_std_in_grpo": False}),
        (algo.compute_rloo_advantage, verl.compute_rloo_outcome_advantage, {}),
        (algo.compute_opo_advantage, verl.compute_opo_outcome_advantage, {}),
        (algo.compute_pass_at_k_advantage, verl.compute_grpo_passk_outcome_advantage, {"config": {}}),
        (
            algo.compute_reinforce_plus_plus_baseline_advantage,
            verl.compute_reinforce_plus_plus_baseline_outcome_advantage,
            {},
        ),
    ]
    for ours, theirs, options in pairs:
        same(ours(rewards, mask, INDEX)[0], theirs(rewards, mask, INDEX, **options)[0], mask)


def test_reinforce_plus_plus_agrees(verl: ModuleType, batch: tuple[Tensor, Tensor, Tensor]) -> None:
    rewards, _, mask = batch
    config = SimpleNamespace(gamma=0.97)
    theirs = verl.compute_reinforce_plus_plus_outcome_advantage(rewards, mask, config=config)
    ours = algo.compute_reinforce_plus_plus_advantage(rewards, mask, 0.97)
    for our_tensor, verl_tensor in zip(ours, theirs, strict=True):
        same(our_tensor, verl_tensor, mask)


def test_losses_agree(verl: ModuleType, batch: tuple[Tensor, Tensor, Tensor]) -> None:
    from verl.workers.config import ActorConfig

    rewards, values, mask = batch
    old, new = values, values + 0.4 * torch.randn_like(values)
    config = ActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio=0.2,
        clip_ratio_low=0.2,
        clip_ratio_high=0.3,
    )
    clip = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.3}
    for mode in get_args(algo.Aggregation):
        loss, metrics = algo.compute_policy_loss(old, new, rewards, mask, **clip, aggregation=mode)
        expected, verls = verl.compute_policy_loss_vanilla(old, new, rewards, mask, loss_agg_mode=mode, config=config)
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
        assert metrics["clip_fraction"] == pytest.approx(verls["actor/pg_clipfrac"], abs=1e-6)
        assert metrics["kl"] == pytest.approx(verls["actor/ppo_kl"], abs=1e-6)
        loss, metrics = algo.compute_value_loss(new, rewards, old, mask, 0.2, aggregation=mode)
        expected, fraction = verl.compute_value_loss(new, rewards, old, mask, 0.2, loss_agg_mode=mode)
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
        assert metrics["clip_fraction"] == pytest.approx(fraction.item(), abs=1e-6)


def test_kl_agrees(verl: ModuleType) -> None:
    torch.manual_seed(0)
    log_probs, ref = torch.randn(2, 100).unbind()
    for name in get_args(algo.KLEstimator):
        torch.testing.assert_close(
            algo.kl_estimate(log_probs, ref, name), verl.kl_penalty(log_probs, ref, name), rtol=1e-5, atol=1e-6
        )
    ours, theirs = algo.KLController(0.01, 0.1, True), verl.AdaptiveKLController(0.01, 0.1, 10_000)
    for kl in (0.01, 0.11, 5.0):
        ours.update(current_kl=kl, n_steps=512)
        theirs.update(current_kl=kl, n_steps=512)
    assert ours.value == pytest.approx(theirs.value)


def test_kl_penalty_agrees(batch: tuple[Tensor, Tensor, Tensor]) -> None:
    from verl import DataProto
    from verl.trainer.ppo.core_algos import FixedKLController
    from verl.trainer.ppo.ray_trainer import apply_kl_penalty

    rewards, log_probs, mask = batch
    ref = log_probs + 0.3 * torch.randn_like(log_probs)
    tensors = {
        "token_level_scores": rewards,
        "old_log_probs": log_probs,
        "ref_log_prob": ref,
        "response_mask": mask,
    }
    data, metrics = apply_kl_penalty(DataProto.from_dict(tensors), FixedKLController(0.1), "k1")
    penalised, kl = algo.apply_kl_penalty(rewards, log_probs, ref, mask, 0.1, "k1")
    torch.testing.assert_close(penalised, data.batch["token_level_rewards"], rtol=1e-5, atol=1e-6)
    assert kl == pytest.approx(metrics["actor/reward_kl_penalty"], abs=1e-6)


def test_verl_still_has_the_faults_that_ours_were_written_for(verl: ModuleType) -> None:
    """If one of these fails, verl has fixed it: update the docstring that mentions it."""
    constant, ones = torch.full((3, 1), 0.1), torch.ones(3, 1)
    group = np.array([0, 0, 0])
    assert any(
        verl.compute_grpo_outcome_advantage(constant * factor, ones, group)[0].any() for factor in range(1, 2000)
    )
    poisoned = torch.tensor([[1.0], [2.0], [float("nan")]])
    assert verl.compute_grpo_outcome_advantage(poisoned, ones, group)[0].isnan().all()
    alone = verl.compute_grpo_outcome_advantage(torch.tensor([[7.0]]), torch.ones(1, 1), np.array([0]))[0]
    assert alone.item() == pytest.approx(7.0)
    rewards, mask = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[1, 1, 0]])
    assert not verl.compute_gae_advantage_return(rewards, torch.zeros(1, 3), mask, 1.0, 1.0)[1].any()
    config = SimpleNamespace(gamma=1.0)
    assert not verl.compute_reinforce_plus_plus_outcome_advantage(rewards, mask, config=config)[1].any()
    noise = verl.kl_penalty(torch.zeros(1), torch.tensor([1e-4]), "k3").item()
    assert noise != pytest.approx(5e-9, rel=0.5)
    controller = verl.AdaptiveKLController(0.01, 0.1, horizon=100)
    controller.update(current_kl=0.0, n_steps=1000)
    assert controller.value < 0
