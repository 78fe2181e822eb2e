"""Debian's Slurm on hosts of this machine: munged on each, slurmctld on the first, slurmd on all of them."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from pathlib import Path
from typing import Any

from tests.e2e.hosts import Host, Network

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
_OWN = "/tmp/slurm"
"""A folder that each host has for itself."""
_CONFIG = """
ClusterName=test
SlurmctldHost={first}
SlurmUser=root
AuthInfo=socket={own}/munge.socket
StateSaveLocation={own}/state
SlurmdSpoolDir={own}/spool
SlurmctldPidFile={own}/slurmctld.pid
SlurmdPidFile={own}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
GresTypes=gpu
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=30
NodeName={names} CPUs=8 Gres=gpu:8
PartitionName=all Nodes=ALL Default=YES
"""
"""More CPUs than there are, and GPUs that are not: nothing here uses them."""


def missing() -> str:
    """The first program that is not installed; empty if all are."""
    return next((name for name in _PROGRAMS if not shutil.which(name, path=_PATH)), "")


class Slurm:
    """A running Slurm.

    Args:
        network: Its hosts, which must be there.
        folder: A shared folder: for the configuration, and where jobs are submitted from.
    """

    def __init__(self, network: Network, folder: Path) -> None:
        self.first = network.hosts[0]
        self.folder = folder
        (folder / "munge.key").write_bytes(secrets.token_bytes(128))
        (folder / "munge.key").chmod(0o600)
        names = ",".join(host.name for host in network.hosts)
        (folder / "slurm.conf").write_text(_CONFIG.format(first=self.first.name, own=_OWN, names=names))
        (folder / "gres.conf").write_text(f"AutoDetect=off\nName=gpu File={_OWN}/gpu[0-7]\n")
        for host in network.hosts:
            host.variables["SLURM_CONF"] = str(folder / "slurm.conf")
            _run(host, "mkdir", "-p", f"{_OWN}/state", f"{_OWN}/spool")
            _run(host, "touch", *(f"{_OWN}/gpu{number}" for number in range(8)))
            own = [f"--{name}={_OWN}/munge.{name.partition('-')[0]}" for name in ("socket", "pid-file", "log-file")]
            _run(host, "munged", "--force", f"--key-file={folder}/munge.key", f"--seed-file={_OWN}/munge.seed", *own)
        _run(self.first, "slurmctld", "-L", f"{folder}/slurmctld.log")
        for host in network.hosts:
            _run(host, "slurmd", "-N", host.name, "-L", f"{folder}/slurmd-{host.name}.log")

    def submit(self, file: str, *options: str) -> str:
        """Submit a job from the shared folder; its id."""
        words = [f"--chdir={self.folder}", f"--output={self.folder}/%j.out", *options, str(self.folder / file)]
        return _run(self.first, "sbatch", "--parsable", *words).strip()

    def output(self, job: str) -> str:
        """What a job has printed."""
        file = self.folder / f"{job}.out"
        return file.read_text() if file.exists() else ""

    def control(self, *words: str) -> str:
        """Run one of Slurm's programs on the first host, and return what it printed."""
        return _run(self.first, *words)

    def show(self, job: str) -> dict[str, str]:
        """What Slurm says about a job."""
        return dict(word.split("=", 1) for word in self.control("scontrol", "show", "job", job).split() if "=" in word)

    def wait(self, job: str, seconds: float) -> dict[str, str]:
        """Wait for the end of a job, and return what Slurm says about it."""
        until = time.monotonic() + seconds
        while (said := self.show(job))["JobState"] in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"):
            assert time.monotonic() < until, f"{said}\n{self.output(job)}"
            time.sleep(0.5)
        return said


def _run(host: Host, *words: str) -> Any:
    done = host.run(words, {"PATH": _PATH})
    assert done.returncode == 0, f"{words} on {host.name}: {done.stdout}{done.stderr}"
    return done.stdout
