"""Which starts a run is evaluated on: held out by default, or as the user says; never the ones it is trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from turnsmith import RayPPOTrainer
from turnsmith.config import ConfigStore, EnvironmentConfig
from turnsmith.env.examples.guess_number import GuessNumber
from turnsmith.env.examples.two_step_maze import TwoStepMaze
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import ConfigError
from turnsmith.rollout.evaluation.evaluate import FIRST_SEED
from turnsmith.trainer.dataset import CustomEnvironmentDataset
from turnsmith.trainer.validation import Validation

SPEC = EnvironmentSpec.of(GuessNumber, EnvironmentConfig(highest=8))


def settings(every: int = 2, episodes: int = 3, **training: Any) -> ConfigStore:
    config = ConfigStore()
    config.evaluation.every, config.evaluation.episodes = every, episodes
    for name, value in training.items():
        setattr(config.training, name, value)
    return config


def seeds(validation: Validation, most: int = 3) -> list[int]:
    return [start["seed"] for start in validation.held_out(most)]


def test_unless_told_it_is_the_same_environment_with_other_seeds() -> None:
    found = Validation.of(None, SPEC)
    assert (found.environment, seeds(found)) == (SPEC, [FIRST_SEED, FIRST_SEED + 1, FIRST_SEED + 2])


@pytest.mark.parametrize("given", [TwoStepMaze, "turnsmith.env.examples:TwoStepMaze", TwoStepMaze()])
def test_an_environment_may_be_another_one(given: Any) -> None:
    found = Validation.of(given, SPEC)
    assert (found.environment.name, seeds(found, 1)) == ("TwoStepMaze", [FIRST_SEED])


def test_the_same_class_may_have_other_settings() -> None:
    found = Validation.of(EnvironmentSpec(GuessNumber, EnvironmentConfig(highest=99)), SPEC)
    assert found.environment.build().config.highest == 99


def test_tasks_are_played_once_each(tmp_path: Path) -> None:
    file, table = tmp_path / "held_out.jsonl", tmp_path / "held_out.json"
    file.write_text('{"a": 1}\n{"a": 2}\n')
    table.write_text('[{"a": 1}, {"a": 2}]')
    for given in (file, str(file), table, str(table), [{"a": 1}, {"a": 2}]):
        found = Validation.of(given, SPEC)
        assert [start["task"] for start in found.held_out(5)] == [{"a": 1}, {"a": 2}]
        assert found.environment == SPEC


def test_a_dataset_may_name_its_environment_and_seeds() -> None:
    found = Validation.of(CustomEnvironmentDataset(TwoStepMaze, seeds=[5, 7]), SPEC)
    assert (found.environment.name, seeds(found)) == ("TwoStepMaze", [5, 7])
    assert found.environment.config == SPEC.config


def test_a_curriculum_cannot_be_held_out() -> None:
    with pytest.raises(ConfigError, match="must stay the same"):
        Validation.of(CustomEnvironmentDataset(curriculum=lambda index, history: {}), SPEC)


def test_the_plan_has_the_settings_of_training_but_for_its_own() -> None:
    config = settings()
    config.inference.max_turns, config.evaluation.temperature = 4, 0.0
    evaluating = Validation.of([{"a": 1}, {"a": 2}], SPEC).schedule(config)
    assert evaluating is not None
    plan = evaluating.plan
    assert (plan.episodes, plan.limits.turns, plan.sampling.temperature, plan.sampling.seed) == (2, 4, 0.0, FIRST_SEED)
    assert [(start.seed, start.task) for start in plan.starts()] == [
        (FIRST_SEED, {"a": 1}),
        (FIRST_SEED + 1, {"a": 2}),
    ]
    config.evaluation.every = 0
    assert Validation.of(None, SPEC).schedule(config) is None


@pytest.mark.parametrize("dataset", [[{"a": 1}], CustomEnvironmentDataset(curriculum=lambda index, history: {})])
def test_a_dataset_of_tasks_needs_tasks_that_are_kept_apart(dataset: Any) -> None:
    with pytest.raises(ConfigError, match="has no held-out set"):
        RayPPOTrainer(settings(), GuessNumber, dataset=dataset)
    RayPPOTrainer(settings(every=0), GuessNumber, dataset=dataset)
    RayPPOTrainer(settings(), GuessNumber, dataset=dataset, validation=[{"a": 9}])


def test_training_must_not_come_to_the_held_out_seeds() -> None:
    for wrong in (settings(seed=FIRST_SEED + 2), settings(seed=FIRST_SEED - 39)):  # 10 steps of 4 groups
        with pytest.raises(ConfigError, match="training would reach them"):
            RayPPOTrainer(wrong, GuessNumber)
    for right in (settings(seed=FIRST_SEED + 3), settings(seed=FIRST_SEED - 40)):
        RayPPOTrainer(right, GuessNumber)
    with pytest.raises(ConfigError, match="training would reach them"):
        RayPPOTrainer(settings(), GuessNumber, dataset=CustomEnvironmentDataset(seeds=[1, FIRST_SEED]))


def test_the_starts_are_kept_in_the_run_folder(tmp_path: Path) -> None:
    assert Validation.load_starts(tmp_path) is None
    Validation.of([{"a": 1}], SPEC).save(tmp_path)
    starts = Validation.load_starts(tmp_path)
    assert starts is not None
    assert Validation(SPEC, starts).held_out(2) == Validation.of([{"a": 1}], SPEC).held_out(2)
