"""Compares what a layout asks of Ray with what the nodes have, before a process waits for what is not there.

Without this check, a run whose layout does not fit would wait for minutes or for ever.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from math import ceil
from typing import Any

from turnsmith.concurrency.threads import cores
from turnsmith.config import ConfigStore
from turnsmith.errors import ConfigError
from turnsmith.trainer.config.layout import RayDemand, all_nodes, resolve_device

_WAIT_SECONDS = 4.0
"""How long the resources of a run that has just ended may take to be free again."""
_NAMES_SHOWN = 3


@dataclass(frozen=True)
class NodeResources:
    """What a node can give a run."""

    name: str
    gpus: int
    cpus: int


def logical_cpus(config: ConfigStore) -> int:
    """CPUs of a Ray of our own. They are logical: processes share the cores, and none waits for ever."""
    return max(cores(), RayDemand.of(config).total_cpus)


def check_machine(config: ConfigStore) -> None:
    """Raise a ConfigError if this is not Linux, or if the run is to start Ray here, and the machine has too few GPUs.

    CPUs, and on a CPU also GPUs, are logical in a Ray of our own: there are always enough.
    """
    if sys.platform != "linux":
        raise ConfigError("Training needs Linux; `turnsmith check`, `play`, `eval` and `runs` work here, too.")
    if config.ray.address or _is_cpu(config):
        return
    import ray

    if not ray.is_initialized():
        machine = this_machine(config)
        problem = _machine_shortage(config, machine)
        if problem:
            raise ConfigError(f"{problem}\n{demand_table(config, [machine])}")


def check_cluster(config: ConfigStore) -> None:
    """Raise a ConfigError unless the cluster that this process has joined has free what the run asks for."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while problem := cluster_shortage(config, nodes := cluster_nodes()):
        if time.monotonic() > deadline:
            raise ConfigError(f"{problem}\n{demand_table(config, nodes)}")
        time.sleep(_WAIT_SECONDS / 16)


def this_machine(config: ConfigStore) -> NodeResources:
    """What a Ray of our own on this machine would have."""
    gpus, logical = (RayDemand.of(config).total_gpus, "GPUs and CPUs") if _is_cpu(config) else (_count_gpus(), "CPUs")
    name = f"this machine ({_count(cores(), 'core')}; the {logical} of Ray are logical)"
    return NodeResources(name, gpus, logical_cpus(config))


def cluster_nodes() -> list[NodeResources]:
    """The nodes of the cluster that this process has joined, with what is free on them."""
    import ray
    from ray._private import state

    free: Any = state.available_resources_per_node()
    found: list[NodeResources] = []
    for node in ray.nodes():
        if node["Alive"]:
            has = free.get(node["NodeID"], node["Resources"])
            found.append(NodeResources(node["NodeManagerAddress"], int(has.get("GPU", 0)), int(has.get("CPU", 0))))
    return sorted(found, key=lambda node: node.name)


def cluster_shortage(config: ConfigStore, nodes: list[NodeResources]) -> str:
    """What these nodes lack for the run, in a sentence; empty if it fits.

    Example:
        >>> config = ConfigStore()
        >>> config.ray.num_nodes, config.ray.gpus_per_node, config.model.device = 2, 8, "cuda"
        >>> cluster_shortage(config, [NodeResources("10.0.0.1", 8, 64), NodeResources("10.0.0.2", 8, 64)])
        ''
        >>> cluster_shortage(config, [NodeResources("10.0.0.1", 8, 64)])
        'The run asks for 2 nodes with 8 GPUs and 27 CPUs free on each, but 1 of 1 node has them: lower ray.num_nodes \
or ray.gpus_per_node, or add nodes.'
    """
    demand = RayDemand.of(config)
    with_cpus = [node for node in nodes if node.cpus]
    units = ceil(demand.storage_units / max(1, len(with_cpus)))  # on the node that gets most of them
    kinds = [(demand.nodes, demand.gpus, demand.cpus), (demand.rollout_nodes, demand.rollout_gpus, demand.rollout_cpus)]
    if not _have_room(kinds, [(node.gpus, node.cpus - units) for node in nodes]):
        return _too_few(config, nodes, ceil(demand.storage_units / max(1, all_nodes(config), len(with_cpus))))
    small = [node for node in with_cpus if node.cpus < units]
    if small:
        return (
            f"TransferQueue starts {_count(units, 'storage process')} of one CPU on each node, but {small[0].name} has "
            f"{_count(small[0].cpus, 'CPU')} free: free some, or start Ray there with `--num-cpus=0`."
        )
    if sum(node.cpus for node in nodes) < demand.total_cpus:
        return "No CPU is left for TransferQueue's controller: the nodes need one more CPU in total."
    return ""


def _have_room(kinds: list[tuple[int, int, int]], free: list[tuple[int, int]]) -> bool:
    """Whether nodes with these GPUs and CPUs free have room for (number, GPUs, CPUs) of each kind.

    verl puts the ranks of a node on one node, but may put those of two on one that is large enough.
    """
    for number, gpus, cpus in sorted(kinds, key=lambda kind: kind[1], reverse=True):
        for _ in range(number):
            room = [place for place, (has, cores) in enumerate(free) if has >= gpus and cores >= cpus]
            if not room:
                return False
            place = min(room, key=lambda place: free[place][0])
            free[place] = (free[place][0] - gpus, free[place][1] - cpus)
    return True


def _too_few(config: ConfigStore, nodes: list[NodeResources], units: int) -> str:
    demand = RayDemand.of(config)
    fitting = sum(node.gpus >= demand.gpus and node.cpus >= demand.cpus + units for node in nodes)
    asked = f"{_count(demand.nodes, 'node')} with {_count(demand.gpus, 'GPU')} and {demand.cpus + units} CPUs free"
    more, fewer = "", "ray.num_nodes or ray.gpus_per_node"
    if demand.rollout_nodes:
        more = (
            f" and {demand.rollout_nodes} that generate with {_count(demand.rollout_gpus, 'GPU')} and "
            f"{demand.rollout_cpus + units} CPUs"
        )
        fewer = "ray.num_nodes, ray.rollout_nodes or ray.gpus_per_node"
    logical = " Start Ray there with `--num-gpus`: on CPUs, a GPU stands for a rank." if _is_cpu(config) else ""
    return (
        f"The run asks for {asked} on each{more}, but {fitting} of {_count(len(nodes), 'node')} "
        f"{'has' if fitting == 1 else 'have'} them: lower {fewer}, or add nodes.{logical}"
    )


def dry_run_table(config: ConfigStore) -> str:
    """What the run asks of Ray, what this machine has if Ray would be started on it, and what it lacks."""
    if config.ray.address:
        return demand_table(config, [])
    machine = this_machine(config)
    return f"{demand_table(config, [machine])}\n{_machine_shortage(config, machine)}".rstrip()


def demand_table(config: ConfigStore, nodes: list[NodeResources]) -> str:
    """What the run asks of Ray, and what the nodes have free."""
    demand = RayDemand.of(config)
    servers = demand.rollout_nodes
    asked = f"{_count(demand.nodes, 'node')} with ranks{'' if servers else ' and rollout servers'}, each"
    rows: list[tuple[str, object, object]] = [
        ("asked of Ray", "GPUs", "CPUs"),
        (asked, demand.gpus, demand.cpus),
        (f"{_count(demand.storage_units, 'storage process')} of TransferQueue, each", 0, 1),
        ("its controller", 0, 1),
        ("free", "GPUs", "CPUs"),
    ]
    if servers:
        rows.insert(
            2, (f"{_count(servers, 'node')} with rollout servers, each", demand.rollout_gpus, demand.rollout_cpus)
        )
    alike: dict[tuple[int, int], list[str]] = {}
    for node in nodes:
        alike.setdefault((node.gpus, node.cpus), []).append(node.name)
    for (gpus, cpus), names in alike.items():
        more = ", ..." if len(names) > _NAMES_SHOWN else ""
        rows.append((f"{_count(len(names), 'node')}: {', '.join(names[:_NAMES_SHOWN])}{more}", gpus, cpus))
    if not nodes:
        rows[-1] = (f"free: known when the cluster at {config.ray.address} has been joined", "", "")
    width = max(len(name) for name, _, _ in rows)
    return "\n".join(f"  {name:<{width}}  {gpus!s:>4}  {cpus!s:>4}".rstrip() for name, gpus, cpus in rows)


def _machine_shortage(config: ConfigStore, machine: NodeResources) -> str:
    demand = RayDemand.of(config)
    if machine.gpus >= demand.total_gpus:
        return ""
    if not machine.gpus:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = "" if hidden is None else f" (CUDA_VISIBLE_DEVICES is {hidden!r})"
        return (
            f"model.device={config.model.device} trains on GPUs, but Ray finds none on this machine{why}. Set "
            "model.device=cpu, or ray.address to a cluster that has GPUs."
        )
    if all_nodes(config) > 1:
        return (
            f"The run asks for {all_nodes(config)} nodes, but without ray.address Ray runs on this machine alone: set "
            "ray.address to the cluster's (`auto` on one of its nodes), or ray.num_nodes=1."
        )
    apart = demand.gpus - config.ray.gpus_per_node
    if apart:
        return (
            f"ray.gpus_per_node={config.ray.gpus_per_node} and {apart} that generate, but Ray finds "
            f"{_count(machine.gpus, 'GPU')} on this machine: lower ray.gpus_per_node or ray.rollout_gpus_per_node."
        )
    return (
        f"ray.gpus_per_node={demand.gpus}, but Ray finds {_count(machine.gpus, 'GPU')} on this machine: set "
        f"ray.gpus_per_node={machine.gpus}."
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


def _is_cpu(config: ConfigStore) -> bool:
    return resolve_device(config) == "cpu"


def _count_gpus() -> int:
    """GPUs that Ray would find on this machine."""
    try:
        from ray._private.accelerators import get_accelerator_manager_for_resource
    except ImportError:  # in a dry run
        return 0

    manager: Any = get_accelerator_manager_for_resource("GPU")
    visible = manager.get_current_process_visible_accelerator_ids()
    count = int(manager.get_current_node_num_accelerators())
    return count if visible is None else min(count, len(visible))
