"""Ray: start it on this machine or join a cluster, and leave no process behind."""

from __future__ import annotations

import logging
import os
from typing import Any

from turnwise.config import ConfigStore
from turnwise.errors import MissingDependency

_GRACE_SECONDS = 4.0


class Cluster:
    """The Ray cluster of one run."""

    def __init__(self, config: ConfigStore, device: str) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingDependency("Ray is not installed: pip install 'turnwise[cpu]'.") from error
        self._owned = not ray.is_initialized()
        if self._owned:
            ray.init(**_init_arguments(config, device))

    def actor(self, cls: type, *, threads: int) -> Any:
        """Start `cls` as an actor on this node, with that many methods at a time."""
        import ray

        here = ray.get_runtime_context().get_node_id()
        strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=True)
        return ray.remote(cls).options(num_cpus=0, max_concurrency=threads, scheduling_strategy=strategy).remote()

    def close(self) -> None:
        """Stop Ray, then every process that it or its workers had started and that did not stop with it."""
        import psutil
        import ray

        if not self._owned:
            return
        started = psutil.Process().children(recursive=True)
        ray.shutdown()
        _, alive = psutil.wait_procs(started, timeout=_GRACE_SECONDS)
        for process in alive:
            process.kill()
        psutil.wait_procs(alive, timeout=_GRACE_SECONDS)


def _init_arguments(config: ConfigStore, device: str) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "runtime_env": {"env_vars": _environment_variables(config, device)},
    }
    if config.ray.address:
        return arguments | {"address": config.ray.address}
    arguments |= {"include_dashboard": False, "num_cpus": max(8, os.cpu_count() or 1)}
    if device == "cpu":
        # Logical slots: verl places its workers by GPU, whatever they compute on.
        arguments["num_gpus"] = config.ray.num_nodes * config.ray.gpus_per_node
    return arguments


def _environment_variables(config: ConfigStore, device: str) -> dict[str, str]:
    variables = {
        "TRANSFER_QUEUE_ENABLE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "NCCL_DEBUG": "WARN",
        "VLLM_LOGGING_LEVEL": "WARN",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "true",
        "VLLM_DISABLE_COMPILE_CACHE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if device == "cpu":
        threads = max(1, (os.cpu_count() or 1) // config.ray.gpus_per_node)
        variables |= {
            "VERL_PLATFORM": "cpu",
            # Ray would give each actor one thread.
            "OMP_NUM_THREADS": str(threads),
            # Waiting threads sleep: spinning ones starve the other processes of a small machine.
            "OMP_WAIT_POLICY": "PASSIVE",
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_CPU_KVCACHE_SPACE": str(max(1, round(config.inference.cpu_cache_gib))),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "CUDA_VISIBLE_DEVICES": "",
        }
    return variables
