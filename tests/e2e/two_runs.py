"""Two runs at the same time on one Ray cluster. A program: `python -m tests.e2e.two_runs FOLDER` starts the cluster and
two more of itself, `python -m tests.e2e.two_runs FOLDER ADDRESS NAME`, each of which trains."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.e2e.three_letters import ThreeLetters
from turnsmith import ConfigStore, RayPPOTrainer


def train(folder: str, address: str, name: str) -> None:
    config = ConfigStore()
    config.model.model_name, config.model.device = "tiny", "cpu"
    config.inference.max_tokens, config.training.learning_rate = 8, 1e-2
    config.training.batch_size, config.training.group_size = 8, 4
    config.checkpoint.output_dir, config.checkpoint.run_name = folder, name
    config.ray.address = address
    trainer = RayPPOTrainer(config, ThreeLetters)
    try:
        trainer.fit(num_epochs=1, num_iters_per_epoch=3)
    finally:
        trainer.cleanup()


def main(folder: str) -> None:
    from ray.cluster_utils import Cluster

    head: dict[str, Any] = {"num_cpus": 16, "num_gpus": 2, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.wait_for_nodes()
    try:
        command = [sys.executable, "-m", "tests.e2e.two_runs", folder, str(cluster.address)]
        runs = [subprocess.Popen([*command, name]) for name in ("one", "other")]
        codes = [run.wait(600) for run in runs]
    finally:
        cluster.shutdown()
    print(json.dumps(codes))


if __name__ == "__main__":
    (main if len(sys.argv) == 2 else train)(*sys.argv[1:])
