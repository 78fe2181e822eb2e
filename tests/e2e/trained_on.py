"""What the actor trained on against what the run folder says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from turnsmith import ConfigStore, RayPPOTrainer
from turnsmith.config_sources import apply_overrides
from turnsmith.records.advantages import read_advantages
from turnsmith.records.episodes import read_episodes
from turnsmith.trainer.advantages import advantages_of


def assert_advantages_are_ours(trainer: RayPPOTrainer, step: int) -> None:
    """Every episode of the step that can be trained on was, with our advantages; some are not 0."""
    assert trainer.run is not None
    trained = read_advantages(trainer.run, step)
    episodes = [one for one in read_episodes(trainer.run, step) if one.outcome and one.outcome.is_behaviour]
    assert {one.episode_id for one in episodes} == trained.advantages.keys()
    ours = advantages_of(episodes, trainer.config.training, trained)
    for one in episodes:
        assert ours[one.episode_id] == pytest.approx(trained.advantages[one.episode_id], abs=1e-5, rel=1e-5)
    assert any(any(row) for row in ours.values())


def assert_trained_on_what_was_sampled(trainer: RayPPOTrainer, steps: int, episodes: int) -> None:
    """Every step had a gradient, our advantages, all its episodes, and the log-probs that they were sampled with."""
    assert [record["step"] for record in trainer.metrics_history] == list(range(1, steps + 1))
    for record in trainer.metrics_history:
        assert record["grad_norm"] > 0
        assert record["rollout_diff/max"] < 1e-5
        assert record["episodes/completed"] == episodes
        assert_advantages_are_ours(trainer, record["step"])
        assert trainer.run is not None
        computed = read_advantages(trainer.run, record["step"]).trainer_log_probs
        for one in read_episodes(trainer.run, record["step"]):
            sampled_with = [number for tokens in one.segments for number in tokens.log_probs[tokens.prompt_length :]]
            assert computed[one.episode_id] == pytest.approx(sampled_with, abs=1e-4)


def assert_two_steps_train(
    environment: Any, folder: Path, *settings: str, batch: int = 16, group: int = 8
) -> list[dict[str, Any]]:
    """Train `tiny` for two steps in an environment: there is a gradient, and it is that of our advantages.

    Returns the metrics of the steps.
    """
    short = f"model.model_name=tiny training.batch_size={batch} training.group_size={group} checkpoint.save_interval=0"
    config = apply_overrides(ConfigStore(), [*short.split(), f"checkpoint.output_dir={folder}", *settings])
    trainer = RayPPOTrainer(config, environment)
    try:
        records = trainer.fit(1, 2)
    finally:
        trainer.cleanup()
    moved = [record["step"] for record in records if record["grad_norm"]]
    assert moved, "all episodes of each group got the same reward"
    for step in moved:
        assert_advantages_are_ours(trainer, step)
    assert all(record["rollout_diff/max"] < 1e-5 for record in records)
    return records
