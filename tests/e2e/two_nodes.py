"""Trains on two logical nodes of one Ray cluster. A program of its own: `python -m tests.e2e.two_nodes FOLDER`.

Ray remembers things of the clusters that a process was in before, and cancels the first actor on the next one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from tests.e2e.three_letters import ThreeLetters
from turnsmith import ConfigStore, RayPPOTrainer


@contextmanager
def cluster() -> Generator[str]:
    """The address of a cluster that somebody else started, as for every user of one."""
    from ray.cluster_utils import Cluster

    node: dict[str, Any] = {"num_cpus": 8, "num_gpus": 1}  # logical GPUs: verl places its workers by them
    made = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    made.add_node(**node)
    made.wait_for_nodes()
    try:
        yield str(made.address)
    finally:
        made.shutdown()


def settings(address: str, folder: str) -> ConfigStore:
    """Two ranks, one on each node, and a tracker."""
    config = ConfigStore()
    config.model.model_name, config.model.device = "tiny", "cpu"
    config.inference.max_tokens = 8
    config.training.learning_rate = 1e-2
    config.checkpoint.output_dir, config.checkpoint.run_name = folder, "two-nodes"
    config.checkpoint.save_interval = 0
    config.logging.trackers = ["tensorboard"]
    config.ray.address, config.ray.num_nodes, config.ray.gpus_per_node = address, 2, 1
    return config


def main(folder: str) -> None:
    """Train two steps; the last line of the output says which GPUs there were."""
    import ray

    with cluster() as address:
        trainer = RayPPOTrainer(settings(address, folder), ThreeLetters)
        try:
            trainer.fit(num_epochs=1, num_iters_per_epoch=2)
            found = {"all": ray.cluster_resources()["GPU"], "free": ray.available_resources().get("GPU", 0)}
        finally:
            trainer.cleanup()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
