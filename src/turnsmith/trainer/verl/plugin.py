"""Registers our parts with verl: `import verl` loads this module in every process (entry-point group `verl.plugins`).

It selects the CPU platform only where `VERL_PLATFORM=cpu` asks for it, so on a GPU machine, and in a user's own verl
runs, verl behaves as if this package were not installed.

verl swallows all errors of plugins. So the task runner calls `check_loaded()`, which raises them.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from turnsmith.records.stacks import enable_stack_dump

LOADED: list[str] = []
"""The parts that have been registered in this process."""


def asked_for_cpu() -> bool:
    """Whether this process is to run verl on the CPU."""
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"


def register_with_verl() -> None:
    """Register all our parts with verl. Idempotent."""
    if "rollouts" not in LOADED:
        _register_rollouts()
        LOADED.append("rollouts")
    if "platform" not in LOADED:
        importlib.import_module("turnsmith.trainer.verl.cpu.platform")  # registers itself
        LOADED.append("platform")
    if os.environ.get("TURNSMITH_RUN"):
        # Ours is used. The one for Ascend NPUs takes two seconds to import where vLLM is installed, that for NCCL cupy.
        for name in ("hccl", "nccl"):
            sys.modules.setdefault(f"verl.checkpoint_engine.{name}_checkpoint_engine", None)  # type: ignore[arg-type]
        from turnsmith.trainer.verl import packed_attention

        enable_stack_dump("process that holds the model", is_guess=True)
        _register_vllm()
        packed_attention.register()
        _let_each_group_meet_in_its_own_file()
        if "ports" not in LOADED:
            from turnsmith.trainer.verl.transport import protect_http, protect_queue

            protect_queue()
            protect_http()
            LOADED.append("ports")
    if asked_for_cpu() and "cpu" not in LOADED:
        from turnsmith.trainer.verl.cpu.vllm import name_the_vllm_distribution

        name_the_vllm_distribution()
        LOADED.append("cpu")


def _register_rollouts() -> None:
    """Tell verl where our rollout server is; it imports that when it needs it."""
    from verl.workers.rollout.base import _ROLLOUT_REGISTRY
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    def load_replica() -> Any:
        from turnsmith.trainer.verl.transformers_replica import TransformersReplica

        return TransformersReplica

    RolloutReplicaRegistry.register("transformers", load_replica)
    _ROLLOUT_REGISTRY[("transformers", "async")] = "turnsmith.trainer.verl.transformers_replica.TransformersAdapter"


def _register_vllm() -> None:
    """Replace verl's vLLM servers by ours, which a run can lose."""
    from verl.workers.rollout.base import _ROLLOUT_REGISTRY
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    def load_replica() -> Any:
        from turnsmith.trainer.verl.vllm_replica import VllmReplica

        return VllmReplica

    RolloutReplicaRegistry.register("vllm", load_replica)
    _ROLLOUT_REGISTRY[("vllm", "async")] = "turnsmith.trainer.verl.vllm_replica.VllmAdapter"


def _let_each_group_meet_in_its_own_file() -> None:
    # On one machine, ranks meet in a file (`private_variables`) that all processes are told: those of the trainer, and
    # those beside rollout servers with GPUs of their own.
    group, file = os.environ.get("WG_PREFIX"), os.environ.get("DIST_INIT_METHOD", "")
    if group and file.startswith("file://") and not file.endswith(f"-{group}"):
        os.environ["DIST_INIT_METHOD"] = f"{file}-{group}"


def check_loaded() -> None:
    """Raise an error if verl did not load the plugin; verl hides the reason."""
    from turnsmith.errors import TrainingFailure

    wanted = ["rollouts", "platform", "ports"] + (["cpu"] if asked_for_cpu() else [])
    missing = [part for part in wanted if part not in LOADED]
    if missing:
        register_with_verl()  # raises the error that verl swallowed
        raise TrainingFailure(
            f"verl did not load turnsmith's plugin ({', '.join(missing)} missing). Install turnsmith with pip so that "
            "its entry point is found, and unset VERL_USE_EXTERNAL_PLUGINS."
        )


register_with_verl()
