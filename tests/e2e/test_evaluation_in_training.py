"""A run that is evaluated while it trains: with the weights of that step, and without a trace in the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.same_runs import differences
from tests.e2e.three_letters import ThreeLetters
from turnsmith import ConfigStore, RayPPOTrainer, read_episodes
from turnsmith.records.checkpoints import best_checkpoint, saved_steps
from turnsmith.rollout.evaluation.evaluate import FIRST_SEED
from turnsmith.rollout.evaluation.result import EvaluationResult
from turnsmith.viewer.report import report_html
from turnsmith.viewer.summary import show_run

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
STEPS, EPISODES = 8, 12


def _settings(folder: Path, every: int) -> ConfigStore:
    config = ConfigStore()
    config.model.model_name = "tiny"
    config.inference.max_tokens = 4
    config.training.learning_rate = 1e-2
    config.training.batch_size, config.training.group_size = 16, 4
    config.checkpoint.output_dir = str(folder)
    config.evaluation.every, config.evaluation.episodes = every, EPISODES
    config.logging.trackers = ["tensorboard"]
    return config


def _train(folder: Path, every: int) -> RayPPOTrainer:
    trainer = RayPPOTrainer(_settings(folder, every), ThreeLetters)
    try:
        trainer.fit(num_epochs=1, num_iters_per_epoch=STEPS)
    finally:
        trainer.cleanup()
    return trainer


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> RayPPOTrainer:
    """A run of 8 steps, evaluated every 3."""
    return _train(tmp_path_factory.mktemp("runs"), every=3)


def test_it_is_evaluated_before_between_and_after(evaluated: RayPPOTrainer) -> None:
    assert evaluated.run is not None
    assert [record["step"] for record in evaluated.evaluations] == [0, 3, 6, STEPS]
    assert evaluated.run.read_evaluations() == evaluated.evaluations
    assert evaluated.evaluations[-1]["reward/mean"] > evaluated.evaluations[0]["reward/mean"]
    for record in evaluated.metrics_history:
        assert ("eval/reward/mean" in record) == (record["step"] in (3, 6, STEPS))
        assert ("time/evaluate" in record) == (record["step"] in (3, 6, STEPS))


def test_an_evaluation_has_the_weights_of_its_step(evaluated: RayPPOTrainer) -> None:
    assert evaluated.run is not None
    for record in evaluated.evaluations:
        result = EvaluationResult.read(evaluated.run, step=record["step"])
        assert [episode.seed for episode in result.trajectories] == list(range(FIRST_SEED, FIRST_SEED + EPISODES))
        versions = {turn.weights_version for episode in result.trajectories for turn in episode.turns}
        assert versions == {record["step"]}
        assert result.metrics()["reward/mean"] == record["reward/mean"]
    change = EvaluationResult.read(evaluated.run).compare(EvaluationResult.read(evaluated.run, step=0))
    assert change.starts == EPISODES


def test_the_best_checkpoint_is_kept(evaluated: RayPPOTrainer) -> None:
    assert evaluated.run is not None
    best = best_checkpoint(evaluated.run.checkpoints_dir)
    assert best is not None
    highest = max(evaluated.evaluations[1:], key=lambda record: (record["reward/mean"], -record["step"]))
    assert (best.step, best.value) == (highest["step"], highest["reward/mean"])
    assert {best.step, STEPS} <= set(saved_steps(evaluated.run.checkpoints_dir))


def test_reports_and_trackers_show_it(evaluated: RayPPOTrainer) -> None:
    assert evaluated.run is not None
    page = report_html(evaluated.run)
    assert "Evaluation: success" in page
    assert "Evaluation: reward" in page
    assert "eval reward" in show_run(evaluated.run)
    assert set(_tracked(evaluated.run.path, "eval/reward/mean")) == {0, 3, 6, STEPS}


def test_training_is_the_same_without_it_to_the_last_bit(evaluated: RayPPOTrainer, tmp_path: Path) -> None:
    plain = _train(tmp_path, every=0)
    assert evaluated.run is not None
    assert plain.run is not None
    assert plain.evaluations == []
    assert len(read_episodes(evaluated.run)) == len(read_episodes(plain.run))
    found = [each for each in differences(evaluated.run, plain.run) if ": eval/" not in each]
    assert found == []


def _tracked(run: Path, name: str) -> dict[int, Any]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    (file,) = (run / "trackers" / "tensorboard").iterdir()
    values = [(event.step, value) for event in EventFileLoader(str(file)).Load() for value in event.summary.value]
    return {step: value.tensor.float_val[0] for step, value in values if value.tag == name}
