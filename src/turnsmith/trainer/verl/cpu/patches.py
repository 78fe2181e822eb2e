"""Patches for the four places in verl 0.9.1 that cannot run on a CPU.

Applied only in processes that are to use the CPU (`plugin.asked_for_cpu`).
"""

from __future__ import annotations

import os
from typing import Any


def make_verl_run_on_cpu() -> None:
    """Make verl's FSDP engines and process groups work without a GPU."""
    _accept_gloo_alone()
    _register_fsdp_engines()
    _keep_the_reference_model_in_plain_memory()
    _copy_the_weights_that_are_kept()
    from turnsmith.trainer.verl.cpu.vllm import name_the_vllm_distribution

    name_the_vllm_distribution()


def _accept_gloo_alone() -> None:
    # verl asks torch for "cpu:gloo,cpu:gloo", which torch rejects because it names one device twice.
    from verl.utils import distributed

    original = distributed.initialize_global_process_group_ray

    def initialize(timeout_second: int | None = None, backend: str | None = None) -> Any:
        return original(timeout_second=timeout_second, backend=backend or "cpu:gloo")

    distributed.initialize_global_process_group_ray = initialize


def _register_fsdp_engines() -> None:
    from verl.workers.engine import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead

    language_model = FSDPEngineWithLMHead
    # A user's own verl run is left alone, on a CPU as well.
    if os.environ.get("TURNSMITH_RUN") and os.environ.get("TURNSMITH_SHARED_PROMPTS") != "0":
        from turnsmith.trainer.verl.cpu.shared_prompts import SharedPromptEngine

        language_model = SharedPromptEngine
    for model_type, engine in {
        "language_model": language_model,
        "value_model": FSDPEngineWithValueHead,
    }.items():
        if "cpu" not in EngineRegistry._engines[model_type]["fsdp2"]:
            EngineRegistry.register(model_type=model_type, backend=["fsdp", "fsdp2"], device="cpu")(engine)


def _keep_the_reference_model_in_plain_memory() -> None:
    # verl moves the reference model to pinned CPU memory, which only a machine with an accelerator has.
    from verl.workers.engine.fsdp import transformer_impl

    transformer_impl.CPUOffloadPolicy = lambda pin_memory: None


def _copy_the_weights_that_are_kept() -> None:
    # With several updates a step, verl keeps the weights of its beginning in CPU memory. Moving them there copies them,
    # except from a CPU: they would change with every update.
    from verl.utils import fsdp_utils

    save = fsdp_utils.fsdp2_sharded_save_to_cpu

    def save_copy(model: Any) -> Any:
        kept, spec = save(model)
        return {name: (tensor.clone(), its_spec) for name, (tensor, its_spec) in kept.items()}, spec

    fsdp_utils.fsdp2_sharded_save_to_cpu = save_copy
