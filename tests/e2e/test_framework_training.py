"""Agents of real frameworks are trained for real: three turns an episode, on the tokens that were sampled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.packages import make_environment
from tests.e2e.trained_on import assert_trained_on_what_was_sampled
from turnsmith import ConfigStore, RayPPOTrainer, Trajectory
from turnsmith.records.episodes import read_episodes
from turnsmith.trajectory import Outcome

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
PROGRAMS = Path(__file__).parent / "frameworks"
STEPS, EPISODES = 2, 4


def small_letters(trajectory: Trajectory) -> float:
    """The share of small letters in what the model said."""
    said = "".join(trajectory.actions)
    return sum(letter.islower() for letter in said) / max(len(said), 1)


@pytest.fixture(
    scope="module",
    params=[
        ("openai_agents_talk.py", ("openai-agents==0.24.0",)),
        ("pydantic_ai_talk.py", ("pydantic-ai-slim[openai]==2.66.0",)),
    ],
    ids=["openai-agents", "pydantic-ai"],
)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayPPOTrainer]:
    program, packages = request.param
    python = make_environment(tmp_path_factory.mktemp("environment"), packages)
    config = ConfigStore()
    config.model.model_name = "tiny"
    config.inference.max_tokens, config.inference.max_prompt_tokens = 8, 1024
    config.training.batch_size = config.training.group_size = EPISODES
    config.training.learning_rate = 1e-2
    config.environment.command = f"{python} {PROGRAMS / program}"
    config.checkpoint.output_dir = str(tmp_path_factory.mktemp("runs"))
    trainer = RayPPOTrainer(config, "turnsmith.env.agent:CommandAgent", reward_fn=small_letters)
    trainer.fit(num_epochs=1, num_iters_per_epoch=STEPS)
    yield trainer
    trainer.cleanup()


def test_it_learns_from_the_tokens_that_were_sampled(trained: RayPPOTrainer) -> None:
    assert_trained_on_what_was_sampled(trained, STEPS, EPISODES)


def test_every_turn_after_the_first_is_bridged(trained: RayPPOTrainer) -> None:
    assert trained.run is not None
    # On a busy machine an attempt may fail; it is repeated, and both are recorded.
    episodes = [episode for episode in read_episodes(trained.run) if episode.outcome is Outcome.COMPLETED]
    assert len(episodes) == STEPS * EPISODES
    for episode in episodes:
        assert [info["continuation"] for info in episode.infos] == ["opened", "bridged", "bridged"]
        assert episode.branches == []
