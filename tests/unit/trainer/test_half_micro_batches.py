"""What a run gives up when a GPU is out of memory; tests/e2e/test_out_of_memory.py has real runs."""

from __future__ import annotations

import pytest

from turnsmith import ConfigStore, RayPPOTrainer
from turnsmith.config_sources import apply_overrides
from turnsmith.env.examples import GuessNumber
from turnsmith.trainer.config.layout import half_micro_batch


def test_a_run_without_checkpoints_does_not_throw_its_steps_away() -> None:
    trainer = RayPPOTrainer(apply_overrides(ConfigStore(), ["checkpoint.save_interval=0"]), GuessNumber)
    trainer._steps_made = 3
    assert trainer._rewind_with_half_micro_batches() is False


@pytest.mark.parametrize(
    ("settings", "half"),
    [
        ("model.device=cuda", "training.micro_batch_tokens=8192"),
        ("model.device=cuda inference.max_episode_tokens=12000", "training.micro_batch_tokens=14048"),
        ("model.device=cuda inference.max_episode_tokens=20000", None),  # one episode is all there is
        ("model.device=cuda training.micro_batch_tokens=0", "training.micro_batch_size=4"),
        ("model.device=cpu training.micro_batch_size=1", None),
    ],
)
def test_half_a_micro_batch_still_holds_the_longest_episode(settings: str, half: str | None) -> None:
    assert half_micro_batch(apply_overrides(ConfigStore(), settings.split())) == half
