"""What a user passes for a run reaches every place that episodes are played in, and the folder, as it was passed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from turnsmith import ConfigStore, EvaluationPlan, JSONActionParser, ToolRegistry, tool
from turnsmith.check.environment.subject import Subject
from turnsmith.env.examples.guess_number import GuessNumber
from turnsmith.rollout.spec import EpisodeParts
from turnsmith.trainer.dataset import Epochs
from turnsmith.trainer.resume import Recipe
from turnsmith.trainer.run_parts import EpisodePlan, RunParts

MODEL = "model"


def pay(trajectory: Any) -> float:
    """A reward with a name."""
    return 1.0


@tool
def look(place: str) -> str:
    """Look somewhere."""
    return place


GIVEN = EpisodeParts(reward_fn=pay, tools=ToolRegistry([look]), parser=JSONActionParser())


def plan(config: ConfigStore, folder: Path) -> EpisodePlan:
    lock: Any = SimpleNamespace(folder=folder, token="held")
    return EpisodePlan.of(config, RunParts.of(config, GIVEN, GuessNumber), lock, MODEL)


def test_every_part_of_an_episode_reaches_training_evaluations_and_checks(tmp_path: Path) -> None:
    assert None not in GIVEN.parts().values(), "give each part here, a new one too"
    config = ConfigStore()
    parts = RunParts.of(config, GIVEN, GuessNumber)
    trained = plan(config, tmp_path).rollout
    evaluated = EvaluationPlan(**trained.parts()).rollout(parts.environment)
    checked = Subject(environment=parts.environment, config=config, **parts.parts()).rollout()
    assert trained.parts() == evaluated.parts() == checked.parts() == GIVEN.parts()


def test_every_part_of_an_episode_is_found_again_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    config = ConfigStore()
    Recipe.of(config, RunParts.of(config, GIVEN, GuessNumber), 8, Epochs(2)).write(tmp_path)
    recipe = Recipe.read(tmp_path)
    assert recipe.nameless == {}
    assert recipe.load("reward_fn") is pay
    assert list(recipe.load("tools")) == [look]
    for part, value in GIVEN.parts().items():
        assert isinstance(recipe.load(part), type(value))


def test_other_processes_get_the_text_of_a_template_and_not_its_file(tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text("{{ messages }}")
    config = ConfigStore()
    config.model.chat_template = str(tmp_path / "mine.jinja")
    assert plan(config, tmp_path).config.model.chat_template == "{{ messages }}"
    assert config.model.chat_template.endswith("mine.jinja"), "the user's own settings are left alone"
