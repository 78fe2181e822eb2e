"""The files and commands of docs/running-on-a-cluster.md: they parse, they agree, and `--dry-run` accepts them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

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
    monkeypatch.setattr("turnsmith.trainer.config.auto.auto_device", lambda: "cuda")  # as if a GPU were there
    program, *words = shlex.split(command)
    assert program == "turnsmith"
    assert main([*words, "--dry-run"]) == 0
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


def test_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    script = file("train.sbatch")
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", script, re.MULTILINE))
    ray, _, command = script.replace("\\\n", " ").splitlines()[-1].partition(" -- ")
    assert ray.split()[:3] == ["srun", "ray", "symmetric-run"]
    assert f"--num-gpus={asked['gpus-per-node']}" in ray
    theirs = dry_run(command.replace("$SLURM_NNODES", asked["nodes"]), tmp_path, monkeypatch, capsys)
    assert gpus_of(theirs) == (int(asked["nodes"]), int(asked["gpus-per-node"]), "cuda")
