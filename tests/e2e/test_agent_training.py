"""An agent with branches is trained for real: each of its sampled tokens once, and by what its episode earned."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.branching_agent import branch
from tests.e2e.trained_on import assert_trained_on_what_was_sampled
from turnsmith import ConfigStore, RayPPOTrainer
from turnsmith.records.advantages import read_advantages
from turnsmith.records.episodes import read_episodes

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
STEPS = 2


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayPPOTrainer]:
    config = ConfigStore()
    config.model.model_name = "tiny"
    config.inference.max_tokens = 8
    config.training.batch_size, config.training.group_size = 8, 4
    config.training.credit = "turn"
    config.training.learning_rate = 1e-2
    config.checkpoint.output_dir = str(tmp_path_factory.mktemp("runs"))
    trainer = RayPPOTrainer(config, branch)
    trainer.fit(num_epochs=1, num_iters_per_epoch=STEPS)
    yield trainer
    trainer.cleanup()


def test_it_learns_from_the_tokens_that_were_sampled(trained: RayPPOTrainer) -> None:
    # Among them the advantages: statistics of groups are those of episodes.
    assert_trained_on_what_was_sampled(trained, STEPS, 8)
    assert [record["agent/branches"] for record in trained.metrics_history] == [3 * 8] * STEPS


def test_every_sampled_token_is_trained_once(trained: RayPPOTrainer) -> None:
    assert trained.run is not None
    rows = read_advantages(trained.run, 1).advantages
    episodes = read_episodes(trained.run, step=1)
    assert {one.episode_id for one in episodes} == rows.keys()
    for one in episodes:
        assert [turn.branch for turn in one.turns].count(0) >= 2
        assert len(one.segments) == 4
        assert sum(one.response_mask()) == sum(turn.stop - turn.start for turn in one.turns)
        assert len(rows[one.episode_id]) == len(one.response_mask())
        # Turns with an advantage of exactly 0 would hide one that was left out.
        with_advantage = [any(rows[one.episode_id][start:stop]) for start, stop in one.turn_spans()]
        assert with_advantage.count(True) >= 6
