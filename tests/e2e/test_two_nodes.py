"""Two logical nodes of one Ray cluster on this machine, joined by its address: a rank and a rollout server on each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.three_letters import ThreeLetters
from turnwise import ConfigStore, RayPPOTrainer, read_episodes

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        "TURNWISE_TWO_NODES" not in os.environ,
        reason="passes in a process of its own (TURNWISE_TWO_NODES=1, this file alone); after other trainers "
        "of the same process Ray cancels the first actor, for a reason not yet found",
    ),
]


@pytest.fixture
def address() -> Iterator[str]:
    """The address of a cluster that somebody else started, as for every user of one."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 8, "num_gpus": 1}  # logical GPUs: verl places its workers by them
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    cluster.add_node(**node)
    cluster.wait_for_nodes()
    yield cluster.address
    cluster.shutdown()


def test_two_nodes_train_together(address: str, tmp_path: Path) -> None:
    import ray

    config = ConfigStore()
    config.model.model_name, config.model.device = "tiny", "cpu"
    config.inference.max_tokens = 8
    config.training.learning_rate = 1e-2
    config.checkpoint.output_dir = str(tmp_path)
    config.checkpoint.save_interval = 0
    config.logging.trackers = ["tensorboard"]
    config.ray.address, config.ray.num_nodes, config.ray.gpus_per_node = address, 2, 1
    trainer = RayPPOTrainer(config, ThreeLetters)
    try:
        records = trainer.fit(num_epochs=1, num_iters_per_epoch=2)
        # Each node has one GPU, and none is left: there is a rank on both.
        assert ray.cluster_resources()["GPU"] == 2
        assert ray.available_resources().get("GPU", 0) == 0
    finally:
        trainer.cleanup()
    assert trainer.run is not None
    assert all(record["grad_norm"] > 0 for record in records)
    assert max(record["rollout_diff/max"] for record in records) < 1e-5
    episodes = read_episodes(trainer.run.path, step=2)
    assert len(episodes) == 32
    assert {turn.weights_version for episode in episodes for turn in episode.turns} == {1}
    assert tracked(trainer.run.path) == {record["step"]: pytest.approx(record["reward/mean"]) for record in records}


def tracked(run: Path) -> dict[int, float]:
    """The mean reward of each step, as TensorBoard has it."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    (file,) = (run / "trackers" / "tensorboard").iterdir()
    events = EventFileLoader(str(file)).Load()
    values = [(event.step, value) for event in events for value in event.summary.value]
    return {step: value.tensor.float_val[0] for step, value in values if value.tag == "reward/mean"}
