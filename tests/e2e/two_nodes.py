"""Compares and trains on two logical nodes of one Ray cluster. A program: `python -m tests.e2e.two_nodes FOLDER`.

Ray remembers things of the clusters that a process was in before, and cancels the first actor on the next one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

from tests.e2e.three_letters import ThreeLetters
from turnsmith import ConfigStore, RayPPOTrainer
from turnsmith.check.machine.machine import check_nodes


@contextmanager
def cluster() -> Generator[Cluster]:
    """A cluster that somebody else started, as for every user of one."""
    node: dict[str, Any] = {"num_cpus": 8, "num_gpus": 1}  # logical GPUs: verl places its workers by them
    made = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    made.add_node(**node)
    made.wait_for_nodes()
    try:
        yield made
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


def other_version(folder: str) -> dict[str, str]:
    """Environment variables under which cachetools seems to be of another version."""
    path = Path(folder) / "planted"
    (path / "cachetools-0.1.dist-info").mkdir(parents=True)
    (path / "cachetools-0.1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: cachetools\nVersion: 0.1\n"
    )
    return {"PYTHONPATH": os.pathsep.join([str(path), os.environ.get("PYTHONPATH", "")])}


def compare_nodes(made: Cluster, config: ConfigStore, folder: str) -> dict[str, str]:
    """What the check of nodes says about the nodes, and what it says with a third one that differs."""
    same = check_nodes(config).saw
    third = made.add_node(num_cpus=1, env_vars=other_version(folder))
    try:
        differ = check_nodes(config)
        assert differ.status == "failed"
        return {"same": same, "differ": f"{differ.saw} {differ.fix}"}
    finally:
        made.remove_node(third)


def main(folder: str) -> None:
    """Compare the nodes and train two steps; the last line of the output has what was found."""
    import ray

    with cluster() as made:
        config = settings(str(made.address), folder)
        found: dict[str, Any] = compare_nodes(made, config, folder)
        trainer = RayPPOTrainer(config, ThreeLetters)
        try:
            trainer.fit(num_epochs=1, num_iters_per_epoch=2)
            found |= {"all": ray.cluster_resources()["GPU"], "free": ray.available_resources().get("GPU", 0)}
        finally:
            trainer.cleanup()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
