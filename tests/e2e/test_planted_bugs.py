"""A bug of turnsmith in a training run, under the default failure policy: it stops there and says where."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.planted_bug import PlantsBug
from turnsmith import ConfigStore, RayPPOTrainer, RunFolder, read_episodes
from turnsmith.errors import InternalError
from turnsmith.records.run_state import RunState
from turnsmith.viewer.run_view import read_run

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]


@pytest.mark.parametrize(
    ("bug", "schedule", "where"),
    [
        ("turnsmith.rollout.buffer:_WIDTH", "sync", "turnsmith.rollout.buffer:"),
        ("turnsmith.rollout.buffer:_WIDTH", "colocate_async", "turnsmith.rollout.buffer:"),
        ("turnsmith.trainer.verl.trainer:episode_names", "sync", "turnsmith.trainer.verl.trainer:_balance_batch:"),
        ("turnsmith.trainer.verl.agent_loop:write_episodes", "sync", "turnsmith.trainer.verl.agent_loop:_write:"),
    ],
    ids=["loop", "loop of an asynchronous schedule", "schedule", "records"],
)
def test_a_training_run_stops_at_a_bug_and_says_where(tmp_path: Path, bug: str, schedule: str, where: str) -> None:
    config = ConfigStore()
    config.model.model_name, config.model.device = "tiny", "cpu"
    config.checkpoint.output_dir, config.checkpoint.run_name, config.checkpoint.save_interval = str(tmp_path), "run", 0
    config.training.batch_size, config.training.group_size = 4, 2
    config.training.schedule = schedule  # type: ignore[assignment]
    config.inference.max_tokens, config.inference.max_turns, config.inference.max_episode_tokens = 4, 3, 128
    config.environment.isolation = "thread"
    config.environment.bug = bug  # type: ignore[attr-defined]
    trainer = RayPPOTrainer(config, PlantsBug)
    try:
        with pytest.raises(InternalError) as stopped:
            trainer.fit(1, 2)
    finally:
        trainer.cleanup()
    run = RunFolder.open(tmp_path / "run")
    assert f"turnsmith failed at {where}" in str(stopped.value)
    assert "This is a bug of turnsmith: please report it" in str(stopped.value)
    log = (run.path / "error.log").read_text()
    assert where.rstrip(":").split(":")[0].rpartition(".")[2] + ".py" in log
    assert "TypeError" in log
    assert read_run(run.path).state is RunState.FAILED
    assert not run.read_metrics()
    assert {episode.outcome for episode in read_episodes(run)} <= {"completed", "turn_limit"}
