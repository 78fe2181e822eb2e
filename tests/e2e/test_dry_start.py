"""Every process of one 8-GPU machine and of four with 4, started on this one: placement, names, ports, resources."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.dry_start import recipe_settings, settings
from tests.e2e.marked_processes import run_program
from turnsmith.trainer.config.layout import RayDemand, episode_workers, storage_units

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]


# 4x8 ends here for want of memory: its 32 ranks, 8 servers and 16 episode workers take more than 24 GiB, at 0.36 each.
@pytest.mark.parametrize(("nodes", "gpus", "tensor"), [(1, 8, 2), (4, 4, 2)], ids=["1x8", "4x4"])
def test_every_process_of_the_layout_starts_where_and_with_what_preflight_counts(
    nodes: int, gpus: int, tensor: int, tmp_path: Path
) -> None:
    found = run_program("tests.e2e.dry_start", tmp_path, nodes, gpus, tensor, timeout=1500)
    config, ranks = settings(nodes, gpus, tensor, str(tmp_path)), nodes * gpus
    check_ranks(found, nodes, gpus)
    check_servers(found, tensor)
    workers = found["episode_workers"]
    assert len(workers) == episode_workers(config)
    assert Counter(Counter(worker["node"] for worker in workers).values()) == {len(workers) // nodes: nodes}
    assert {worker["servers"] for worker in workers} == {ranks // tensor}
    assert "TransferQueueController" in found["names"]
    # What is taken, and what preflight says.
    demand = RayDemand.of(config)
    taken = {name: found["all"][name] - found["free"].get(name, 0) for name in ("GPU", "CPU")}
    to_place_servers = nodes  # needed while they start, and free again
    assert taken == {"GPU": demand.nodes * demand.gpus, "CPU": demand.total_cpus - to_place_servers}
    assert demand.storage_units == storage_units(config) == 2 * nodes


@pytest.mark.parametrize("name", ["qwen3_4b_lora_24gb", "qwen3_4b_lora_80gb", "qwen3_8b_8xh100"])
def test_the_recipes_for_gpus_start_with_a_tiny_model(name: str, tmp_path: Path) -> None:
    # qwen3_30b_a3b_2x8 takes too much memory; of separate_async, test_separate_async.py trains with 2 + 2.
    found = run_program("tests.e2e.dry_start", tmp_path, name, timeout=1500)
    config = recipe_settings(name, str(tmp_path))
    check_ranks(found, config.ray.num_nodes, config.ray.gpus_per_node)
    check_servers(found, config.model.tensor_parallel_size)
    assert len(found["episode_workers"]) == episode_workers(config)


def check_ranks(found: dict[str, Any], nodes: int, gpus: int) -> None:
    ranks, count = found["ranks"], nodes * gpus
    assert [int(rank["RANK"]) for rank in ranks] == list(range(count))
    assert {rank["WORLD_SIZE"] for rank in ranks} == {str(count)}
    assert {rank["RAY_LOCAL_WORLD_SIZE"] for rank in ranks} == {str(gpus)}
    assert len({(rank["MASTER_ADDR"], rank["MASTER_PORT"]) for rank in ranks}) == 1
    # All of them met in one process group.
    assert {int(rank["DRY_SUM_OF_RANKS"]) for rank in ranks} == {sum(range(count))}
    homes = [{rank["node"] for rank in ranks[first : first + gpus]} for first in range(0, count, gpus)]
    assert all(len(home) == 1 for home in homes)
    assert len(set.union(*homes)) == nodes
    for first in range(0, count, gpus):
        devices = [rank["gpus"] for rank in ranks[first : first + gpus]]
        assert sorted(devices, key=str) == [[str(gpu)] for gpu in range(gpus)]
    assert len(set(found["rank_names"])) == count
    assert found["groups"] == [{"strategy": "STRICT_PACK", "bundles": [{"CPU": 3, "GPU": 1}] * gpus}] * nodes


def check_servers(found: dict[str, Any], tensor: int) -> None:
    ranks, servers = found["ranks"], found["servers"]
    assert len(servers) == len(ranks) // tensor
    assert {f"vllm_server_{number}_0" for number in range(len(servers))} <= set(found["names"])
    for number, server in enumerate(servers):
        mine = ranks[number * tensor : (number + 1) * tensor]
        assert {rank["node"] for rank in mine} == {server["node"]}
        assert server["gpus"] == ",".join(rank["gpus"][0] for rank in mine)
    assert len(set(found["addresses"])) == len({server["master"] for server in servers}) == len(servers)
