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
        # Only for Ascend NPUs, but its import takes two seconds where vLLM is installed.
        sys.modules.setdefault("verl.checkpoint_engine.hccl_checkpoint_engine", None)  # type: ignore[arg-type]
        from turnsmith.trainer.verl import packed_attention

        enable_stack_dump("process that holds the model", is_guess=True)
        _load_value_heads_with_the_chosen_attention()
        _shard_a_fused_head_with_the_whole_model()
        _register_vllm()
        packed_attention.register()
        _let_each_group_meet_in_its_own_file()
        if "ports" not in LOADED:
            from turnsmith.trainer.verl.transport import protect_http, protect_queue

            protect_queue()
            protect_http()
            LOADED.append("ports")
    if asked_for_cpu() and "cpu" not in LOADED:
        from turnsmith.trainer.verl.cpu.platform import make_verl_run_on_cpu

        make_verl_run_on_cpu()
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


def _load_value_heads_with_the_chosen_attention() -> None:
    # verl's loader always asks for flash_attention_2, and ignores the model's config.
    from verl.utils import model

    def load_valuehead_model(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
        from transformers import AutoModelForTokenClassification

        return AutoModelForTokenClassification.from_pretrained(
            local_path, dtype=torch_dtype, config=model_config, trust_remote_code=trust_remote_code
        )

    model.load_valuehead_model = load_valuehead_model


def _shard_a_fused_head_with_the_whole_model() -> None:
    # verl's fused forward reads `lm_head.weight` without calling lm_head. FSDP2 gathers the weights of what it wrapped
    # when that is called, so of a head that verl wraps by itself (untied weights) it would be this rank's part only.
    from verl.utils import fsdp_utils

    select = fsdp_utils._select_fsdp2_wrap_targets
    if select.__module__ == __name__:
        return

    def without_fused_head(model: Any, layer_classes: list[str]) -> list[Any]:
        is_fused = getattr(model, "_verl_fused_kernels_backend", None) is not None
        head = model.get_output_embeddings() if is_fused else None
        return [module for module in select(model, layer_classes) if module is not head]

    fsdp_utils._select_fsdp2_wrap_targets = without_fused_head


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
