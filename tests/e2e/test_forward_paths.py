"""Updates that take verl's own forward path, as on a GPU, learn like those that compute a shared prompt once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from turnsmith import BaseEnvironment, ConfigStore, RayPPOTrainer, RunFolder

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]


class ManyLetters(BaseEnvironment):
    """Pays for different letters, after a prompt so long that computing it once for a group is less work."""

    def reset(self) -> str:
        """Ask for the first time."""
        return "Say many letters. " * 16

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Even a model that has learned nothing gets various rewards."""
        self.step_count += 1
        return "Once more", len(set(action)) / 8, self.step_count == 2, {}


def train(folder: Path, name: str, *, fused: bool = False) -> list[dict[str, Any]]:
    """The metrics of two steps."""
    config = ConfigStore()
    config.verl = {"actor_rollout_ref.model.use_fused_kernels": fused}
    config.training.use_kl_loss = True  # a reference model as well
    config.model.model_name, config.model.device = "tiny", "cpu"
    config.inference.max_tokens = 8
    config.training.num_epochs, config.training.steps_per_epoch = 1, 2
    config.training.batch_size, config.training.group_size, config.training.learning_rate = 8, 4, 1e-2
    config.checkpoint.output_dir, config.checkpoint.run_name, config.checkpoint.save_interval = str(folder), name, 0
    trainer = RayPPOTrainer(config, ManyLetters)
    try:
        trainer.fit()
    finally:
        trainer.cleanup()
    return RunFolder.open(folder / name).read_metrics()


def test_all_paths_have_equal_gradients_and_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together, fused = train(tmp_path, "together"), train(tmp_path, "fused", fused=True)
    monkeypatch.setenv("TURNSMITH_SHARED_PROMPTS", "0")
    for others in (fused, train(tmp_path, "apart")):
        assert len(together) == len(others) == 2
        for one, other in zip(together, others, strict=True):
            assert one["grad_norm"] > 0.01
            for name in ("grad_norm", "policy_loss", "entropy", "reward/mean"):
                assert one[name] == pytest.approx(other[name], abs=1e-5, rel=1e-5), name
        # They were two paths: rounding differs somewhere.
        assert any(one["grad_norm"] != other["grad_norm"] for one, other in zip(together, others, strict=True))
