"""Tools in real training: SmolLM2 at the support desk, whose tool methods are offered in the prompt."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnsmith import ConfigStore, RayPPOTrainer, read_episodes
from turnsmith.env.examples import SupportDesk

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]


def test_the_support_desk_trains_with_its_tools(tmp_path: Path) -> None:
    config = ConfigStore()
    config.model.model_name = "smollm2"
    config.inference.max_tokens = 24
    config.inference.max_turns = 2
    config.inference.max_prompt_tokens = 2048
    config.inference.max_episode_tokens = 1024
    config.training.batch_size = 4
    config.training.group_size = 2
    config.training.micro_batch_size = 2
    config.checkpoint.output_dir = str(tmp_path)
    config.checkpoint.save_interval = 0
    trainer = RayPPOTrainer(config, SupportDesk)
    try:
        (record,) = trainer.fit(num_epochs=1, num_iters_per_epoch=1)
    finally:
        trainer.cleanup()
    assert trainer.run is not None
    episodes = read_episodes(trainer.run.path, step=1)
    assert len(episodes) == record["episodes/total"] == 4
    assert all(episode.outcome is not None and episode.outcome.is_behaviour for episode in episodes)
    assert all("refund" in episode.messages[0]["content"] for episode in episodes), "the tools were not offered"
    assert record["rollout_diff/max"] < 1e-3
