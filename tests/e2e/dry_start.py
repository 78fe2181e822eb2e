"""Starts every process of a GPU layout on logical nodes of this machine, without a model in them. A program of its own:
`python -m tests.e2e.dry_start FOLDER NODES GPUS TENSOR_PARALLEL_SIZE`, or `... FOLDER NAME` of a file in recipes/gpu;
the last line of its output is what it found.

The settings are those of the GPU layout, and so are preflight, placement groups, resource demands, names, ports,
process groups, TransferQueue, and where each process goes. Ranks, vLLM servers and episode workers hold no model, and
VERL_PLATFORM=cpu lets verl's base classes start without a GPU.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import Any

import ray

from tests.e2e.three_letters import ThreeLetters
from turnsmith import ConfigStore, RayPPOTrainer
from turnsmith.config_sources import apply_overrides, load
from turnsmith.trainer.config.layout import RayDemand
from turnsmith.trainer.verl.task_runner import TaskRunner


def where() -> str:
    """The node of this process."""
    return ray.get_runtime_context().get_node_id()


class DryServer:
    """In place of verl's vLLMHttpServer."""

    def __init__(self, cuda_visible_devices: str, nnodes: int, **unused: Any) -> None:
        self.found = {"node": where(), "gpus": cuda_visible_devices, "nodes": nnodes}
        self.sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]

    async def get_master_address(self) -> tuple[str, int, int]:
        return "127.0.0.1", self.sockets[0].getsockname()[1], self.sockets[1].getsockname()[1]

    async def launch_server(self, master_address: str, master_port: int, dp_rpc_port: int) -> None:
        self.found["master"] = master_port

    async def get_server_address(self) -> tuple[str, int]:
        return "127.0.0.1", self.sockets[2].getsockname()[1]

    async def describe(self) -> dict[str, Any]:
        return self.found

    async def sleep(self) -> None: ...

    async def wait_for_requests_to_drain(self) -> None: ...


class DryEpisodeWorker:
    """In place of our EpisodeWorker."""

    def __init__(self, part: str, plan: Any, config: Any, servers: int) -> None:
        self.found = {"part": part, "node": where(), "servers": servers}

    async def pulse(self) -> tuple[int, str]:
        return 0, "idle"

    async def stay(self) -> None:
        import asyncio

        await asyncio.Event().wait()

    async def describe(self) -> dict[str, Any]:
        return self.found


def dry_rank() -> type:
    """In place of verl's ActorRolloutRefWorker."""
    from verl.single_controller.base import Worker
    from verl.single_controller.base.decorator import Dispatch, register

    class DryRank(Worker):
        def __init__(self, **unused: Any) -> None:
            super().__init__()

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def init_model(self) -> None:
            """The process group of all ranks, as verl makes it."""
            import torch
            from verl.utils.distributed import initialize_global_process_group_ray

            initialize_global_process_group_ray(backend="cpu:gloo")
            total = torch.tensor([int(os.environ["RANK"])])
            torch.distributed.all_reduce(total)
            os.environ["DRY_SUM_OF_RANKS"] = str(int(total))

        @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
        def update_weights(self, global_steps: int | None = None, mode: str = "auto") -> None: ...

    return DryRank


def of_rank(worker: Any) -> dict[str, Any]:
    """What a rank knows about itself."""
    context = ray.get_runtime_context()
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RAY_LOCAL_WORLD_SIZE", "DRY_SUM_OF_RANKS")
    return {
        "node": context.get_node_id(),
        "gpus": context.get_accelerator_ids()["GPU"],
        **{name: os.environ[name] for name in names},
    }


class DryTaskRunner(TaskRunner):
    """The task runner, whose ranks, servers and episode workers hold no model."""

    def start(self, config: Any, plan: Any, *more: Any) -> None:
        import verl  # noqa: F401  (its plugins load first)
        from verl.trainer.ppo.v1 import trainer_base
        from verl.workers.rollout.replica import RolloutReplicaRegistry
        from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMReplica

        from turnsmith.trainer.verl import agent_loop, server_pool

        class DryReplica(vLLMReplica):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                self.server_class = ray.remote(DryServer)

        trainer_base.ActorRolloutRefWorker = dry_rank()
        RolloutReplicaRegistry.register("vllm", lambda: DryReplica)
        agent_loop.EpisodeWorker = DryEpisodeWorker
        # Their number will do: with the pool itself every episode worker would have to import verl.
        server_pool.ServerPool.of_worker = lambda pool, place, workers: len(pool._servers)
        super().start(config, plan, *more)

    def describe(self) -> dict[str, Any]:
        """What was started, and where."""
        ranks, servers = self._trainer.actor_rollout_wg, self._trainer.llm_server_manager
        groups = [
            {"strategy": group["strategy"], "bundles": list(group["bundles"].values())}
            for group in ray.util.placement_group_table().values()
            if group["state"] == "CREATED"
        ]
        return {
            "ranks": ray.get([rank.__ray_call__.remote(of_rank) for rank in ranks.workers]),
            "rank_names": ranks.worker_names,
            "groups": groups,
            "servers": ray.get([server.describe.remote() for server in servers.server_handles]),
            "addresses": servers.server_addresses,
            "episode_workers": [slot.handle.call("describe").result() for slot in self._workers._slots],
            "names": sorted(actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)),
        }


def settings(nodes: int, gpus: int, tensor: int, folder: str) -> ConfigStore:
    """Those of a GPU layout."""
    from tests.unit.trainer.gpu_layouts import Layout

    more = ["model.model_name=tiny", f"checkpoint.output_dir={folder}", "checkpoint.run_name=dry"]
    return apply_overrides(ConfigStore(), [*Layout(nodes, gpus, tensor).settings(), *more])


def recipe_settings(name: str, folder: str) -> ConfigStore:
    """Those of a file in recipes/gpu, with the tiny model."""
    config = load(Path(__file__).parents[2] / "recipes" / "gpu" / f"{name}.yaml")
    config.model.model_name, config.model.device, config.evaluation.every = "tiny", "cuda", 0
    config.model.attn_implementation = "sdpa"  # the ranks hold no model
    config.inference.thinking, config.inference.tool_format = None, "function_calling"  # what tiny's template has
    config.ray.address, config.checkpoint.output_dir, config.checkpoint.run_name = "auto", folder, "dry"
    return config


@contextmanager
def cluster(config: ConfigStore) -> Generator[str]:
    """Logical nodes that have exactly what preflight asks for."""
    from ray.cluster_utils import Cluster

    demand = RayDemand.of(config)
    cpus = demand.cpus + ceil(demand.storage_units / demand.nodes)
    node: dict[str, Any] = {"num_gpus": demand.gpus, "object_store_memory": 100 * 2**20}
    made = Cluster(initialize_head=True, head_node_args={**node, "num_cpus": cpus + 1, "include_dashboard": False})
    for _ in range(demand.nodes - 1):
        made.add_node(**node, num_cpus=cpus)
    made.wait_for_nodes()
    try:
        yield str(made.address)
    finally:
        made.shutdown()


def main(folder: str, *layout: str) -> None:
    """Start, look, and stop."""
    from turnsmith.trainer.verl import task_runner

    os.environ["VERL_PLATFORM"] = "cpu"  # before the nodes start, which pass it on
    task_runner.TaskRunner = DryTaskRunner  # type: ignore[misc]
    config = recipe_settings(layout[0], folder) if len(layout) == 1 else settings(*map(int, layout), folder)
    with cluster(config) as address:
        config.ray.address = address
        trainer = RayPPOTrainer(config, ThreeLetters)
        try:
            trainer._start(1)
            found = ray.get(trainer._runner.describe.remote())
            found |= {"all": ray.cluster_resources(), "free": ray.available_resources()}
        finally:
            trainer.cleanup()
    print(json.dumps({**found, "asked": dataclasses.asdict(RayDemand.of(config))}))


if __name__ == "__main__":
    main(*sys.argv[1:])
