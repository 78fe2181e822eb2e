"""`training.schedule=separate_async`: a rank and a rollout server apart, two updates a step, a killed server."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from tests.e2e.slow_letters import SlowLetters
from tests.e2e.trained_on import assert_advantages_are_ours
from turnsmith import ConfigStore, RayPPOTrainer, read_episodes
from turnsmith.config_sources import apply_overrides
from turnsmith.records.run_folder import RunFolder
from turnsmith.trainer.verl.transformers.server import server_name

pytestmark = pytest.mark.e2e
SETTINGS = (
    "model.model_name=tiny inference.max_tokens=6 training.batch_size=16 training.group_size=4 "
    "training.mini_batch_size=8 training.learning_rate=1e-2 training.steps_per_epoch=1 training.max_staleness=2 "
    "training.schedule=separate_async ray.rollout_gpus_per_node=1 checkpoint.save_interval=0 environment.seconds=0.3"
)
STEPS, KILLED_AFTER = 9, 4


def settings(folder: Path, *more: str) -> ConfigStore:
    return apply_overrides(ConfigStore(), [*SETTINGS.split(), f"checkpoint.output_dir={folder}", *more])


@dataclass
class Watched:
    """A run, and what was seen between its steps."""

    trainer: RayPPOTrainer
    unequal: list[int] = field(default_factory=list[int])
    """Steps after which a weight of the server was not the trainer's."""
    versions: list[int] = field(default_factory=list[int])
    pids: list[int] = field(default_factory=list[int])

    def step(self) -> None:
        self.trainer.fit(1, 1)
        trained, (served, version, pid) = weights_of_rank(self.trainer), weights_of_server()
        same = trained.keys() == served.keys() and all(torch.equal(trained[name], served[name]) for name in trained)
        self.unequal += [] if same else [version]
        self.versions.append(version)
        self.pids.append(pid)

    @property
    def run(self) -> RunFolder:
        assert self.trainer.run is not None
        return self.trainer.run


def weights_of_server() -> tuple[dict[str, torch.Tensor], int, int]:
    def look(server: Any) -> Any:
        model = server.engine.model
        return dict(model.named_parameters()), server.engine.weights_version, os.getpid()

    server: Any = ray.get_actor(server_name(0))
    return ray.get(server.__ray_call__.remote(look))


def weights_of_rank(trainer: RayPPOTrainer) -> dict[str, torch.Tensor]:
    def look(worker: Any) -> Any:
        module = worker.worker_dict["actor"].actor.engine.module
        return {name: tensor.full_tensor() for name, tensor in module.named_parameters()}

    def ask(runner: Any) -> Any:
        return ray.get(runner._trainer.actor_rollout_wg.workers[0].__ray_call__.remote(look))

    assert trainer._runner is not None
    return ray.get(trainer._runner.__ray_call__.remote(ask))


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """Nine steps; after the fourth one, with episodes under way, the rollout server is killed."""
    more = (f"evaluation.every={STEPS - 1}", "evaluation.episodes=8")
    watched = Watched(RayPPOTrainer(settings(tmp_path_factory.mktemp("runs"), *more), SlowLetters))
    try:
        for number in range(1, STEPS + 1):
            watched.step()
            if number == KILLED_AFTER:
                os.kill(watched.pids[-1], signal.SIGKILL)
        watched.run.read_metrics()
    finally:
        watched.trainer.cleanup()
    return watched


def test_it_learns(watched: Watched) -> None:
    rewards = [record["reward/mean"] for record in watched.trainer.metrics_history]
    assert len(rewards) == STEPS
    assert sum(rewards[-3:]) > 2 * sum(rewards[:3])


def test_the_server_has_the_weights_of_the_trainer_after_each_sync(watched: Watched) -> None:
    assert watched.unequal == []
    assert watched.versions == list(range(1, STEPS + 1))


def test_a_killed_server_recovers(watched: Watched) -> None:
    first, last = watched.pids[:KILLED_AFTER], watched.pids[KILLED_AFTER:]
    assert len(set(first)) == len(set(last)) == 1
    assert first[0] != last[0]
    told = [event["content"] for event in watched.run.read_events() if event["kind"] == "warning"]
    assert any("A rollout server died" in str(sentence) for sentence in told)


def test_staleness_reaches_its_limit_and_does_not_exceed_it(watched: Watched) -> None:
    # At first there is nothing older.
    assert [record["staleness/max"] for record in watched.trainer.metrics_history] == [0.0, 1.0] + [2.0] * (STEPS - 2)
    for step in range(1, STEPS + 1):
        for episode in read_episodes(watched.run, step=step):
            versions = [version for version in episode.token_versions() if version >= 0]
            assert step - 1 - 2 <= min(versions) <= max(versions) <= step - 1


def test_every_episode_of_both_updates_is_recorded_once(watched: Watched) -> None:
    before = 0
    for record in watched.run.read_ledger():
        assert record["carried_in"] == before
        assert record["dispatched"] + record["carried_in"] == record["trained"] + len(record["carried"])
        assert record["trained"] == 16
        before = len(record["carried"])
    assert before == 2 * 16, "two batches are ahead"
    names = [
        episode.episode_id
        for step in range(1, STEPS + 1)
        for episode in read_episodes(watched.run, step=step)
        if episode.decision.is_counted
    ]
    assert len(set(names)) == len(names) == 16 * STEPS
    for step in range(1, STEPS + 1):
        assert_advantages_are_ours(watched.trainer, step)


def test_an_evaluation_is_made_while_episodes_are_under_way(watched: Watched) -> None:
    (evaluation,) = [one for one in watched.run.read_evaluations() if one["step"] == STEPS - 1]
    assert evaluation["episodes"] == 8
