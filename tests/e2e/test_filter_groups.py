"""`training.filter_groups` in real runs: each batch is full of groups that differ, and no episode gets lost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.coin import Coin, NoCoin
from turnsmith import ConfigStore, RayPPOTrainer, RunFolder, read_episodes
from turnsmith.errors import TrainingFailure
from turnsmith.rollout.episode_groups import group_name
from turnsmith.viewer.ledger_totals import LedgerTotals

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
STEPS, EPISODES = 5, 8


def train(folder: Path, schedule: str, environment: type[Coin]) -> RunFolder:
    config = ConfigStore()
    config.model.model_name, config.model.device = "tiny", "cpu"
    config.checkpoint.output_dir, config.checkpoint.run_name, config.checkpoint.save_interval = str(folder), "run", 0
    config.training.batch_size, config.training.group_size = EPISODES, 2
    config.training.filter_groups, config.training.schedule = True, schedule  # type: ignore[assignment]
    config.inference.max_tokens, config.inference.max_turns, config.inference.max_episode_tokens = 4, 1, 32
    config.environment.isolation = "thread"
    trainer = RayPPOTrainer(config, environment)
    try:
        trainer.fit(1, STEPS)
    finally:
        trainer.cleanup()
    return RunFolder.open(folder / "run")


@pytest.mark.parametrize("schedule", ["sync", "colocate_async"])
def test_every_step_trains_on_groups_that_differ_and_the_ledger_balances(tmp_path: Path, schedule: str) -> None:
    run = train(tmp_path, schedule, Coin)
    ledger, metrics = run.read_ledger(), run.read_metrics()
    assert [step["trained"] for step in ledger] == [EPISODES] * STEPS
    filtered = [step["filtered"] for step in ledger]
    assert sum(filtered) > 0
    assert [step.get("groups/filtered", 0) * 2 for step in metrics] == filtered
    assert LedgerTotals.of(ledger).balances
    waiting = [len(step["carried"]) for step in ledger]
    assert max(waiting) <= (0 if schedule == "sync" else 2 * EPISODES), "filtered episodes are not carried along"
    for step in range(1, STEPS + 1):
        episodes = read_episodes(run, step=step)
        decisions = Counter(episode.decision.value for episode in episodes)
        assert decisions == Counter({"kept": EPISODES, "filtered": filtered[step - 1]})
        for group in {group_name(episode.episode_id) for episode in episodes}:
            pair = [episode for episode in episodes if group_name(episode.episode_id) == group]
            assert len({episode.total_reward for episode in pair}) == (2 if pair[0].decision.value == "kept" else 1)
    assert all(step["grad_norm"] > 0 for step in metrics)


def test_nothing_but_equal_rewards_stops_the_run_in_words(tmp_path: Path) -> None:
    with pytest.raises(
        TrainingFailure, match=r"in nearly all of them the rewards were equal, so the tasks are too easy"
    ):
        train(tmp_path, "sync", NoCoin)
