"""What can be checked without training: packages, nodes, disk, and the speed of the engine."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from turnsmith import __version__
from turnsmith.check.environment.checks.settings import disk_finding
from turnsmith.check.finding import Finding
from turnsmith.check.machine.letters import CountLetters
from turnsmith.concurrency.threads import cores
from turnsmith.config import ConfigStore
from turnsmith.importing import installed_version
from turnsmith.inference.auto import auto_device
from turnsmith.inference.engine import Sampling
from turnsmith.inference.sync.create import create_inference_engine, engine_settings
from turnsmith.rollout.evaluation.evaluate import EvaluationPlan, evaluate
from turnsmith.rollout.spec import Limits
from turnsmith.trainer.config.layout import resolve_backend, resolve_device, resolve_dtype
from turnsmith.trainer.driver.gpu_preflight import TABLE, lacks, model_shape
from turnsmith.trainer.driver.machine_facts import ask_nodes, cuda_of_torch, read_machine, read_nodes

_NEEDED = 2 * 2**30
_WRITTEN_MIB = 64


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
        "driver": read_machine(".").driver,
        "cuda": cuda_of_torch(),
        "load": round(os.getloadavg()[0], 1),
        "versions": versions(),
    }


def check_packages(config: ConfigStore) -> Finding:
    """Every package that these settings need is installed, and of a version that turnsmith supports."""
    extra = "vllm"
    if resolve_device(config) == "cpu":
        extra = "vllm-cpu" if resolve_backend(config) == "vllm" else "cpu"
    return judge_packages(metadata.requires("turnsmith") or (), extra, versions())


def judge_packages(requirements: Sequence[str], extra: str, installed: Mapping[str, str]) -> Finding:
    """Whether what an extra of turnsmith requires is installed, and other packages fit at least one extra.

    Example:
        >>> needs = ["numpy>=2", 'torch==2.13.0; extra == "cpu"', 'torch==2.12.0; extra == "vllm"']
        >>> judge_packages(needs, "cpu", {"numpy": "2.1", "torch": "2.13.0+cpu"}).saw
        '2 packages of turnsmith[cpu]: torch 2.13.0+cpu'
        >>> judge_packages(needs, "vllm", {"numpy": "2.1", "torch": "2.13.0+cpu"}).saw
        'torch is 2.13.0+cpu, but turnsmith[vllm] needs ==2.12.0.'
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
        return Finding("failed", f"{'; '.join(wrong)}.", again)
    shown = [f"{name} {installed[name]}" for name in ("verl", "torch", "vllm", "vllm-cpu") if name in installed]
    return Finding("passed", f"{count} packages of turnsmith[{extra}]: {', '.join(shown)}")


def check_gpu_needs(config: ConfigStore, folder: Path) -> Finding:
    """This machine, or each node of the cluster, has what a run on GPUs needs."""
    if resolve_device(config) == "cpu":
        return Finding("skipped", "no GPU")
    where = str(folder)
    machines = (
        _joined(config, lambda: read_nodes(where)) if config.ray.address else [read_machine(where, starts_ray=True)]
    )
    if said := lacks(config, machines, model_shape(config.model.local_path or config.model.model_name)):
        fix = "Change what it names; `train` refuses this, unless ray.force=true is set."
        return Finding("failed" if any(said.values()) else "warning", " ".join(said), fix)
    drivers = ", ".join(sorted({f"driver {one.driver or 'unknown'}, CUDA {one.cuda or 'none'}" for one in machines}))
    return Finding("passed", f"{len(TABLE)} things on {len(machines)} machine{'s' * (len(machines) > 1)}: {drivers}")


def _joined(config: ConfigStore, ask: Callable[[], Any]) -> Any:
    """The result of a function that needs the cluster."""
    import ray

    ray.init(address=config.ray.address, log_to_driver=False)
    try:
        return ask()
    finally:
        ray.shutdown()


def check_nodes(config: ConfigStore) -> Finding:
    """Every node of the cluster has the same packages as this machine."""
    if not config.ray.address:
        return Finding("skipped", "one machine (ray.address is not set)")
    answers = _joined(config, lambda: ask_nodes(versions))
    return judge_nodes(versions(), answers)


def judge_nodes(here: Mapping[str, str], nodes: Mapping[str, Mapping[str, str] | str]) -> Finding:
    """Whether all nodes have the packages of this machine.

    Args:
        here: Versions by package, on this machine.
        nodes: Versions by package on each node, or the error of a node that could not be asked.

    Example:
        >>> judge_nodes({"verl": "0.9.1"}, {"10.0.0.2": {"verl": "0.9.1"}, "10.0.0.3": {"verl": "0.9.1"}}).saw
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
        return Finding("failed", f"{'; '.join(wrong[:5])}.", "Install the same versions on every node.")
    return Finding("passed", f"{len(nodes)} nodes have the same versions of {len(here)} packages")


def check_disk(folder: Path) -> Finding:
    """The folder for runs has room for them and can be written to, also with a quota that is smaller than the disk."""
    try:
        with (folder / "written").open("wb") as file:
            for _ in range(_WRITTEN_MIB):
                file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())
    except OSError as error:
        saw = f"{_WRITTEN_MIB} MiB could not be written to {folder}: {error.strerror or error}."
        return Finding("failed", saw, "Make room there, or choose another --output-dir.")
    finally:
        (folder / "written").unlink(missing_ok=True)
    return disk_finding(folder, _NEEDED, f"The runs of these checks write up to {_NEEDED / 2**30:g} GiB")


_EPISODES = 32
_TOKENS = 16
_SLOWEST = 20.0
_SHARE = 0.5
_TURN_SECONDS = 0.05
"""Seconds that a turn may cost besides its tokens, even if the tokens take less: one process runs some 100 turns a
second, and a fast engine needs less time than that for the tokens of a tiny model."""


def check_throughput(config: ConfigStore) -> Finding:
    """Whether the engine is fast enough to train with, and about as fast in episodes as alone."""
    backend = resolve_backend(config)
    if backend == "sglang":
        return Finding("skipped", "SGLang runs as a server, which only the runs below start")
    if resolve_device(config) == "cuda" and auto_device() == "cpu":
        return Finding("skipped", "this machine of the cluster has no GPU")
    settings = engine_settings(config, backend)
    settings |= {"dtype": resolve_dtype(config)} if "dtype" in settings else {}
    with create_inference_engine(config.model.local_path or config.model.model_name, backend, settings) as engine:
        engine.generate(["Say words."], max_tokens=2)  # the first request compiles and allocates
        began = time.perf_counter()
        output = engine.generate([f"Say words with many {n}." for n in range(_EPISODES)], max_tokens=_TOKENS)
        alone = sum(map(len, output.token_ids)) / (time.perf_counter() - began)
        began = time.perf_counter()
        plan = EvaluationPlan(episodes=_EPISODES, limits=Limits(turns=2), sampling=Sampling(_TOKENS))
        result = evaluate(CountLetters, engine, plan=plan)
        seconds = time.perf_counter() - began
    tokens = sum(one.sampled_tokens for one in result.trajectories)
    turns = sum(one.num_turns for one in result.trajectories)
    return judge_throughput(alone, tokens / seconds, tokens / turns)


def judge_throughput(alone: float, in_episodes: float, turn_tokens: float) -> Finding:
    """Whether the engine is fast enough, alone and in episodes.

    Args:
        alone: Tokens a second of the engine.
        in_episodes: Tokens a second of episodes.
        turn_tokens: Tokens of a turn.

    Example:
        >>> judge_throughput(1000.0, 900.0, 16.0).saw
        '1,000 tokens/s from the engine alone, 900 in episodes; a turn costs 2 ms more'
    """
    if alone < _SLOWEST:
        saw = f"The engine makes {alone:.1f} tokens/s with {_EPISODES} requests at a time, less than {_SLOWEST:g}."
        return Finding("failed", saw, "Is another program using this machine's cores or GPU?")
    more = max(0.0, turn_tokens / in_episodes - turn_tokens / alone)
    if in_episodes < _SHARE * alone and more > _TURN_SECONDS:
        saw = f"The engine makes {alone:,.0f} tokens/s alone but {in_episodes:,.0f} in episodes: a turn costs \
{1000 * more:.0f} ms besides its tokens (at most {1000 * _TURN_SECONDS:.0f})."
        return Finding("failed", saw, "The process that runs episodes gets too little of the CPU: stop other programs.")
    saw = f"{alone:,.0f} tokens/s from the engine alone, {in_episodes:,.0f} in episodes; a turn costs \
{1000 * more:.0f} ms more"
    return Finding("passed", saw)
