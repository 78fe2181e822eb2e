"""A Ray of our own on this machine: its processes' environment variables, the fork server of its workers, its ports."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from turnsmith.concurrency.threads import cores
from turnsmith.config import ConfigStore
from turnsmith.trainer import ray_shims
from turnsmith.trainer.config.layout import RayDemand, resolve_backend
from turnsmith.trainer.driver.ending import starting_ray

_PASSED_ON = re.compile("(NCCL|HF)_(?!.*TOKEN)")


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
        # vLLM's other model runner needs a GPU: the one that our tests run is the one that a GPU gets.
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        # No package reports how it is used.
        "DO_NOT_TRACK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        # Ray's control store would keep 4 kB of every call of an actor, up to 100,000 calls.
        "RAY_task_events_report_interval_ms": "0",
        # Ray would serve its metrics at a port that needs no token.
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
        ray_shims.QUEUE_NAMESPACE: f"transfer_queue_{secrets.token_hex(6)}",
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
    # How NCCL talks and where models are, but no secret: Ray shows the variables of a job to everybody on its cluster.
    theirs = {name: value for name, value in os.environ.items() if _PASSED_ON.match(name)}
    return theirs | {name: os.environ.get(name, value) for name, value in defaults.items()} | needed


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


_OF_BACKEND = {
    "transformers": ["turnsmith.trainer.verl.transformers_replica", "turnsmith.inference.engines.transformers_engine"],
    "vllm": ["turnsmith.trainer.verl.vllm_replica", "vllm.v1.worker.cpu_worker"],
    "sglang": [],
}
_MODULE = "turnsmith.trainer.verl.fork_server"


class ForkServer:
    """A child of this process, which begins to import at once.

    Args:
        folder: A folder that only this user can enter.
        variables: Environment variables of every process of the run.
        modules: What to import.
    """

    def __init__(self, folder: str, variables: Mapping[str, str], modules: Sequence[str]) -> None:
        self.address = f"{folder}/fork_server"
        """Its socket."""
        import psutil  # it comes with the extras for training

        # -P: not the folder of the user's script, whose modules may have the name of an installed one.
        command = [sys.executable, "-P", "-m", _MODULE, self.address, *modules]
        with starting_ray(), Path(f"{folder}/fork_server.txt").open("wb") as log:
            self.process = psutil.Popen(
                command,
                env={**os.environ, **variables},
                process_group=0,  # Ctrl-C is for the user's process alone
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            """The process, whose children are those that it forked."""


@contextmanager
def forking_workers(server: ForkServer | None) -> Iterator[dict[str, str]]:
    """Have a Ray that is started in this block, with these variables, start its workers by the fork server if any."""
    if server is None:
        yield {}
        return
    from ray._private import ray_constants

    # Ray joins it to the folder of its own script, of which an absolute path leaves nothing.
    before, ray_constants.SETUP_WORKER_FILENAME = ray_constants.SETUP_WORKER_FILENAME, ray_shims.__file__
    try:
        # Ray would start workers before there is anything to do, and wait for them.
        yield {ray_shims.ADDRESS: server.address, "RAY_prestart_worker_first_driver": "0"}
    finally:
        ray_constants.SETUP_WORKER_FILENAME = before


def preloaded_modules(config: ConfigStore) -> list[str]:
    """What the processes of a run with these settings import; verl first, so that its plugins load before our parts."""
    return ["verl", "turnsmith.trainer.verl.schedules", *_OF_BACKEND[resolve_backend(config)]]


LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""A switch of Ray, named after the systems where it is off by default: Ray's and verl's processes then listen on
127.0.0.1 only."""

COMMAND_OF = "_build_python_executable_command_memory_profileable"
"""The function of `ray._private.services` that builds the command of an agent, without its script."""

_NOT_STARTED = ("start_api_server", "start_monitor")
"""Processes that a Ray on one machine does not need: one asks cloud providers whether this is one of their machines, to
report usage; the autoscaler has no nodes to add, and publishes metrics at a port that needs no token."""

START_LIMITS = {
    "RAY_gcs_server_port_wait_time_s": "120",
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_gcs_rpc_server_connect_timeout_s": "60",
}
"""How long Ray's processes wait for each other when they start: 5 to 30 s by default, too little on a busy machine."""


@contextmanager
def _in_environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def on_this_machine_alone(variables: Mapping[str, str]) -> Iterator[None]:
    """Start Ray with these variables, bound to 127.0.0.1, and without its dashboard's agent.

    The environment variable is for Ray's processes; this process read it when it imported Ray, which a user's script
    may have done long ago. Without a dashboard its agent has nothing to do, but a node is not up before its agent is.
    """
    from ray._private import node, ray_constants, services
    from ray._raylet import AuthenticationTokenLoader  # pyright: ignore[reportAttributeAccessIssue]

    is_cluster, command_of = ray_constants.ENABLE_RAY_CLUSTER, getattr(services, COMMAND_OF)
    started = {name: getattr(node.Node, name) for name in _NOT_STARTED}
    ray_constants.ENABLE_RAY_CLUSTER = False
    # The path of Ray's own script is then the first argument of ours.
    ours = {
        ray_constants.PROCESS_TYPE_DASHBOARD_AGENT: [sys.executable, "-I", "-S", ray_shims.__file__, ray_shims.AGENT]
    }
    setattr(services, COMMAND_OF, lambda part, *more, **named: ours.get(part) or command_of(part, *more, **named))
    for name in _NOT_STARTED:
        setattr(node.Node, name, lambda self, **unused: None)
    try:
        limits = {name: value for name, value in START_LIMITS.items() if name not in os.environ}
        with _in_environment({**limits, **variables, **LOOPBACK}):
            AuthenticationTokenLoader.instance().reset_cache()  # of an earlier Ray in this process
            yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = is_cluster
        setattr(services, COMMAND_OF, command_of)
        for name, start in started.items():
            setattr(node.Node, name, start)
