"""What a machine has for a run on GPUs, read within seconds and without torch, here or on each node of a cluster."""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from turnsmith.errors import ConfigError
from turnsmith.records.files import existing_parent

_NODE_SECONDS = 120.0
_SMI_SECONDS = 60.0
_SMI = "nvidia-smi --query-gpu=driver_version,memory.total,compute_cap,name --format=csv,noheader,nounits"
_MOST_FILES = 65536
"""`ray.init` raises the soft limit of its process, and so of all that it starts, up to this."""


@dataclass(frozen=True)
class Gpu:
    """One card."""

    name: str
    memory: float
    """Bytes."""
    capability: float
    """Its compute capability."""


@dataclass(frozen=True)
class Machine:
    """What one machine has."""

    name: str
    driver: str = ""
    """The version of NVIDIA's driver; empty: there is none, or it is not known."""
    cuda: str = ""
    """The version of CUDA that the installed torch is built for; empty: for none."""
    gpus: tuple[Gpu, ...] = ()
    """Those that nvidia-smi lists; empty where it does not tell."""
    shared_memory: float = 0.0
    """Bytes of /dev/shm."""
    open_files: float = 0.0
    """How many files and connections a process of the run may open."""
    disk: float = 0.0
    """Bytes that are free where the run is written."""


def read_machine(folder: str, *, starts_ray: bool = False, proc: Path = Path("/proc/driver/nvidia/version")) -> Machine:
    """Read the facts of this machine.

    Args:
        folder: Where the run is written.
        starts_ray: Whether this process starts Ray, which raises its limit on open files.
        proc: Where NVIDIA's driver says its version; under WSL2 only nvidia-smi does.
    """
    gpus, driver = _gpus()
    if proc.is_file() and (found := re.search(r" (\d+\.\d[\d.]*) ", proc.read_text(encoding="utf-8"))):
        driver = found[1]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shared = Path("/dev/shm")
    return Machine(
        name="this machine",
        driver=driver,
        cuda=cuda_of_torch(),
        gpus=gpus,
        shared_memory=shutil.disk_usage(shared).total if shared.is_dir() else 0.0,
        open_files=max(soft, min(hard, _MOST_FILES)) if starts_ray else soft,
        disk=shutil.disk_usage(existing_parent(Path(folder).expanduser())).free,
    )


def cuda_of_torch() -> str:
    """The CUDA that the installed torch is built for, from the file with its version; empty if for none."""
    torch = find_spec("torch")
    file = Path(torch.origin).with_name("version.py") if torch is not None and torch.origin else Path("version.py")
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    found = re.search(r"^cuda\b[^=]*= *['\"]([\d.]+)", text, re.MULTILINE)
    return found[1] if found else ""


def _gpus() -> tuple[tuple[Gpu, ...], str]:
    """The cards, and the driver's version, as nvidia-smi tells them."""
    try:
        done = subprocess.run(_SMI.split(), capture_output=True, text=True, timeout=_SMI_SECONDS, check=True)
        rows = [line.split(", ", 3) for line in done.stdout.splitlines()]
        cards = [Gpu(name, float(mib) * 2**20, float(capability)) for _, mib, capability, name in rows]
    except (OSError, subprocess.SubprocessError, ValueError):  # none, too old to be asked, or a card that is broken
        return (), ""
    return tuple(cards), rows[0][0] if rows else ""


def read_nodes(folder: str) -> list[Machine]:
    """Read the facts of every node with GPUs of the Ray cluster that this process has joined."""
    found = list[Machine]()
    for name, answer in ask_nodes(read_machine, folder, only_gpus=True).items():
        if isinstance(answer, str):
            raise ConfigError(f"turnsmith does not run on the node {name}: {answer}. Install it there as here.")
        found.append(replace(answer, name=name))
    return found


def ask_nodes(function: Any, *args: Any, only_gpus: bool = False) -> dict[str, Any]:
    """What a function returns on each node of the cluster, by the node's name; an error is a sentence."""
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask, asked, answers = ray.remote(function), dict[str, Any](), dict[str, Any]()
    for node in ray.nodes():
        if node["Alive"] and (node["Resources"].get("GPU") or not only_gpus):
            here = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            # Nodes that are started on one machine, for a test, share its address.
            name = f"{node['NodeManagerAddress']} ({node['NodeID'][:6]})"
            asked[name] = ask.options(num_cpus=0, scheduling_strategy=here).remote(*args)
    for name, answer in asked.items():
        try:
            answers[name] = ray.get(answer, timeout=_NODE_SECONDS)
        except RayError as error:
            answers[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
    return answers
