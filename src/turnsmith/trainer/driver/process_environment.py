"""Environment variables of a run's processes."""

from __future__ import annotations

import os
import secrets

from turnsmith.config import ConfigStore
from turnsmith.threads import cores
from turnsmith.trainer.config.layout import RayDemand


def environment_variables(config: ConfigStore, device: str) -> dict[str, str]:
    """Environment variables of every process of a run.

    What the user has set where the run is started stays, and reaches every node, except what a run cannot do without.
    """
    defaults = {
        "TOKENIZERS_PARALLELISM": "false",
        "NCCL_DEBUG": "WARN",
        "VLLM_LOGGING_LEVEL": "WARN",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "true",
        "VLLM_DISABLE_COMPILE_CACHE": "1",
        # Nothing is reported to anybody.
        "DO_NOT_TRACK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        # Ray's control store would keep 4 kB of every call of an actor, up to 100,000 calls.
        "RAY_task_events_report_interval_ms": "0",
        # Nor are there metrics of Ray at a port without a token.
        "RAY_enable_metrics_collection": "0",
        # TransferQueue keeps the duration of every request until it logs them, after 5 minutes by default.
        "TQ_PERF_LOG_FLUSH_INTERVAL": "60",
        # glibc gives threads up to eight pools of memory a core, and each keeps the most that it ever needed.
        "MALLOC_ARENA_MAX": "4",
    }
    # By these our plugin knows a run, verl its data path, and both and vLLM the CPU.
    needed = {
        "TURNSMITH_RUN": "1",
        "TURNSMITH_RUN_KEY": secrets.token_hex(32),
        "TRANSFER_QUEUE_ENABLE": "1",
    }
    if device == "cpu":
        threads = max(1, cores() // RayDemand.of(config).gpus)
        defaults |= {
            # Ray would give each actor one thread.
            "OMP_NUM_THREADS": str(threads),
            # Waiting threads sleep: spinning ones would starve the other processes of a small machine.
            "OMP_WAIT_POLICY": "PASSIVE",
            # vLLM compiles a few small functions even in eager mode, which takes half a minute at the first request.
            "TORCHDYNAMO_DISABLE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            # 0: verl's own forward pass, the one that a GPU takes.
            "TURNSMITH_SHARED_PROMPTS": "1",
        }
        needed |= {
            "VERL_PLATFORM": "cpu",
            "VLLM_TARGET_DEVICE": "cpu",
            # A setting of ours; it would have no effect.
            "VLLM_CPU_KVCACHE_SPACE": str(max(1, round(config.inference.cpu_cache_gib))),
        }
    return {name: os.environ.get(name, value) for name, value in defaults.items()} | needed


def private_variables(folder: str) -> dict[str, str]:
    """Variables that keep other users of this machine away: temporary files in `folder`, and a token of this run.

    Ray writes its token to a file that everybody may read, unless it finds one in the environment.
    """
    variables = {
        "TMPDIR": folder,
        # torch's ranks meet in a file instead of at a port without a password, and talk on this machine only.
        "DIST_INIT_METHOD": f"file://{folder}/ranks",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    if not any(os.environ.get(name) for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")):
        variables["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    return variables
