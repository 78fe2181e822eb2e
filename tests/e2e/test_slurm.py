"""Slurm, as Debian has it, runs the file of docs/running-on-a-cluster.md as it stands, on two hosts of this machine.

Only what is the user's is made for the test: `my_game`, `cluster.yaml`, and a cached model under the name of the one in
the docs. Slurm is told that each host has the GPUs that the file asks for; `sbatch` is told how many nodes and CPUs.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import verification_problem
from tests.e2e.hosts import Network, refusal
from tests.e2e.slurm import Slurm, missing
from tests.e2e.watched_run import steps_made
from tests.unit.test_cluster_page import file
from turnsmith.inference.models import resolve

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(1800)]
STEPS = 3
SIZE = ("--nodes=2", "--cpus-per-task=8")
CLUSTER = """
ray: {{address: auto, gpus_per_node: 1}}
model: {{device: cpu}}
inference: {{max_tokens: 6}}
training: {{batch_size: 16, group_size: 4, num_epochs: {steps}, steps_per_epoch: 1}}
checkpoint: {{output_dir: {folder}, run_name: {name}}}
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Slurm on two hosts, and in its folder what a user would have there."""
    if reason := refusal():
        pytest.skip(f"no hosts on this machine: {reason}")
    if program := missing():
        pytest.skip(f"{program} is not installed (apt-get install munge slurmctld slurmd slurm-client)")
    folder = tmp_path_factory.mktemp("slurm")
    shared = folder / "shared"
    shared.mkdir()
    cached = shared / "huggingface/hub/models--Qwen--Qwen3-0.6B"
    shutil.copytree(resolve("tiny"), cached / "snapshots/1")
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text("1")
    (shared / "my_game.py").write_text("from tests.e2e.three_letters import ThreeLetters as MyGame\n")
    (shared / "train.sbatch").write_text(file("train.sbatch"))
    with Network(shared, folder) as network:
        token = secrets.token_hex(32)
        for _ in range(2):
            host = network.add()
            path = f"{shared}:{host.environment()['PYTHONPATH']}"
            host.variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "PYTHONPATH": path}
            host.variables |= {"HF_HOME": str(shared / "huggingface")}
        yield Slurm(network, shared)


def test_the_job_of_the_docs_trains_on_two_nodes(slurm: Slurm) -> None:
    run = slurm.folder / "trained"
    settings = CLUSTER.format(steps=STEPS, folder=slurm.folder, name="trained")
    (slurm.folder / "cluster.yaml").write_text(settings)
    job = slurm.submit("train.sbatch", *SIZE)
    said = slurm.wait(job, 400)
    print(slurm.output(job))
    assert (said["JobState"], said["ExitCode"]) == ("COMPLETED", "0:0"), slurm.output(job)
    assert (said["NumNodes"], said["NumCPUs"]) == ("2", "16")
    assert steps_made(run) == STEPS
    assert verification_problem(run) == ""
