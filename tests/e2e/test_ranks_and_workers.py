"""What a cluster has more of, on one machine: two FSDP2 ranks, two rollout servers, two processes that run episodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.three_letters import ThreeLetters
from tests.e2e.trained_on import assert_advantages_are_ours
from turnsmith import ConfigStore, RayPPOTrainer, read_episodes
from turnsmith.rollout.evaluation.evaluate import FIRST_SEED
from turnsmith.rollout.evaluation.result import EvaluationResult

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]


def test_two_of_everything_train_alike(tmp_path: Path) -> None:
    config = ConfigStore()
    config.model.model_name = "tiny"
    config.inference.max_tokens = 8
    config.training.learning_rate = 1e-2
    config.checkpoint.output_dir = str(tmp_path)
    config.checkpoint.save_interval = 0
    config.ray.gpus_per_node = 2
    config.ray.num_actors = 2
    config.training.credit = "turn"
    config.evaluation.every, config.evaluation.episodes = 1, 9
    trainer = RayPPOTrainer(config, ThreeLetters)
    try:
        records = trainer.fit(num_epochs=1, num_iters_per_epoch=2)
    finally:
        trainer.cleanup()
    assert trainer.run is not None
    assert all(record["grad_norm"] > 0 for record in records)
    assert max(record["rollout_diff/max"] for record in records) < 1e-5
    for step in (1, 2):
        assert_advantages_are_ours(trainer, step)
        assert len(list(trainer.run.episodes_dir.glob(f"step-{step:08d}-*.parquet"))) == 2
        episodes = read_episodes(trainer.run.path, step=step)
        assert len(episodes) == records[step - 1]["episodes/total"] == 32
        assert {turn.weights_version for episode in episodes for turn in episode.turns} == {step - 1}
    for step in (0, 1, 2):
        played = EvaluationResult.read(trainer.run, step=step).trajectories
        assert [episode.seed - FIRST_SEED for episode in played] == list(range(9))  # in order, whoever played them
        assert {turn.weights_version for episode in played for turn in episode.turns} == {step}
