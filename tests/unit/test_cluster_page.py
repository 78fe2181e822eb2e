"""The files and commands of docs/running-on-a-cluster.md: they parse, they agree, and `--dry-run` accepts them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.kuberay_schema import problems

from turnsmith.cli.main import main
from turnsmith.config_sources import load

PAGE = (Path(__file__).parents[2] / "docs" / "running-on-a-cluster.md").read_text(encoding="utf-8")


def file(name: str) -> str:
    """A file that the page shows, by its title."""
    found = re.search(rf'^```\w+ title="{name}"\n(.+?)^```', PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, f"the page shows no {name}"
    return found[1]


def dry_run(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """What verl would get for a command of the page."""
    (folder / "my_game.py").write_text("from turnsmith.env.examples.guess_number import GuessNumber as MyGame\n")
    (folder / "cluster.yaml").write_text(file("cluster.yaml"))
    monkeypatch.chdir(folder)
    monkeypatch.delitem(sys.modules, "my_game", raising=False)  # another test may have had one
    monkeypatch.setattr("turnsmith.trainer.config.layout.auto_device", lambda: "cuda")  # as if a GPU were there
    program, *words = shlex.split(command)
    assert program == "turnsmith"
    assert main([*words, "--dry-run", "training.check=false"]) == 0
    return list(yaml.safe_load_all(capsys.readouterr().out))[1]


def gpus_of(theirs: Any) -> tuple[int, int, str]:
    return theirs["trainer"]["nnodes"], theirs["trainer"]["n_gpus_per_node"], theirs["trainer"]["device"]


def test_one_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    command = re.search(r"^\$ (turnsmith .+gpus_per_node=8 \S+)$", PAGE, re.MULTILINE)
    assert command is not None
    assert gpus_of(dry_run(command[1], tmp_path, monkeypatch, capsys)) == (1, 8, "cuda")


def test_kuberay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    job = yaml.safe_load(file("rayjob.yaml"))
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    (container,) = workers["template"]["spec"]["containers"]
    for pod in (cluster["headGroupSpec"], workers):
        spec = pod["template"]["spec"]
        mounted = {mount["name"] for each in spec["containers"] for mount in each["volumeMounts"]}
        assert mounted == {volume["name"] for volume in spec["volumes"]}
    command = job["spec"]["entrypoint"].replace("/shared/cluster.yaml", "cluster.yaml")
    theirs = dry_run(command, tmp_path, monkeypatch, capsys)
    gpus = int(container["resources"]["limits"]["nvidia.com/gpu"])
    assert gpus_of(theirs) == (workers["replicas"], gpus, "cuda")
    assert load(tmp_path / "cluster.yaml").ray.address == "auto"


def test_the_manifest_is_one_of_kuberay() -> None:
    job = yaml.safe_load(file("rayjob.yaml"))
    assert problems(job) == []
    cluster = job["spec"]["rayClusterSpec"]
    cluster["headGroupSpec"]["rayStartParams"]["num-gpus"] = 0
    (workers,) = cluster["workerGroupSpecs"]
    workers["replica"] = workers.pop("replicas")
    del cluster["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["name"]
    wrong_type, missing, unknown = sorted(problems(job))
    assert wrong_type.endswith(".rayStartParams.num-gpus: 0 is not of type 'string'")
    assert unknown.endswith("Additional properties are not allowed ('replica' was unexpected)")
    assert missing.endswith("'name' is a required property")


def test_skypilot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    task = yaml.safe_load(file("sky.yaml"))
    assert subprocess.run(["bash", "-n"], input=task["run"], text=True, check=False).returncode == 0
    command = task["run"].replace("\\\n", " ").partition(" -- ")[2].strip()
    theirs = dry_run(command.replace("/shared/cluster.yaml", "cluster.yaml"), tmp_path, monkeypatch, capsys)
    gpus = int(task["resources"]["accelerators"].partition(":")[2])
    assert gpus_of(theirs) == (task["num_nodes"], gpus, "cuda")


def test_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    script = file("train.sbatch")
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", script, re.MULTILINE))
    ray, _, command = script.replace("\\\n", " ").splitlines()[-1].partition(" -- ")
    assert ray.split()[:5] == ["srun", "env", "--ignore-signal=USR1", "ray", "symmetric-run"]
    assert f"--num-gpus={asked['gpus-per-node']}" in ray
    theirs = dry_run(command.replace("$SLURM_NNODES", asked["nodes"]), tmp_path, monkeypatch, capsys)
    assert gpus_of(theirs) == (int(asked["nodes"]), int(asked["gpus-per-node"]), "cuda")


def test_a_job_of_slurm_that_is_preempted_goes_back_into_the_queue_and_resumes(tmp_path: Path) -> None:
    (tmp_path / "job").write_text(file("preemptible.sbatch"))
    for program, status in (("srun", "$STATUS"), ("scontrol", "0")):
        (tmp_path / program).write_text(f'#!/bin/bash\necho {program} "$@"\nexit {status}\n')
        (tmp_path / program).chmod(0o755)

    def submit(status: int) -> tuple[int, list[str]]:
        variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "STATUS": str(status), "SLURM_JOB_ID": "7"}
        done = subprocess.run(["bash", "job"], cwd=tmp_path, env=variables, capture_output=True, text=True)
        assert done.stderr == ""
        return done.returncode, done.stdout.splitlines()

    status, (first, requeued) = submit(75)
    assert status == 75
    assert first.startswith("srun turnsmith train my_game:MyGame ")
    assert requeued == "scontrol requeue 7"
    name = re.search(r"checkpoint.output_dir=(\S+) checkpoint.run_name=(\S+)", first)
    assert name
    run = tmp_path / name[1] / name[2]
    run.mkdir(parents=True)
    (run / "resume.json").touch()
    assert submit(0) == (0, ["srun turnsmith resume runs/my-game"])
    assert submit(2) == (2, ["srun turnsmith resume runs/my-game"])
