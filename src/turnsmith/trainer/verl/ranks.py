"""The trainer's ranks: verl's workers, with our engines registered, on a CPU and on GPUs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import ray
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.utils.device import get_device_name
from verl.utils.distributed import initialize_global_process_group_ray
from verl.workers.engine import EngineRegistry
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from turnsmith.trainer.verl.cpu.shared_prompts import SharedPromptEngine
from turnsmith.trainer.verl.engines import LanguageModelEngine, ValueModelEngine


def _register_engines() -> None:
    """On a CPU under a name of their own; on GPUs by the vendor, which verl looks up before its own engines."""
    on_cpu = LanguageModelEngine if os.environ.get("TURNSMITH_SHARED_PROMPTS") == "0" else SharedPromptEngine
    for device, vendors, engine in (("cpu", None, on_cpu), ("cuda", ["nvidia", "amd"], LanguageModelEngine)):
        EngineRegistry.register("language_model", ["fsdp", "fsdp2"], device, vendors)(engine)
        EngineRegistry.register("value_model", ["fsdp", "fsdp2"], device, vendors)(ValueModelEngine)


_register_engines()


class Rank(TrainingWorker):
    """A rank of one model."""

    def __init__(self, config: Any) -> None:
        if get_device_name() == "cpu":  # verl would name one device twice, which torch rejects
            initialize_global_process_group_ray(backend="cpu:gloo")
        super().__init__(config)


class ActorRank(DetachActorWorker):
    """A rank of the actor, and of the reference if there is one."""

    actor_worker_cls = ref_worker_cls = Rank

    @property
    def copy_handler(self) -> Callable[[Any], Any]:
        """What keeps a step's first weights in CPU memory, if the step has several updates."""
        save: Any = super().copy_handler
        if get_device_name() != "cpu":
            return save

        def save_copy(model: Any) -> Any:  # moving them there copies them, but not from a CPU
            kept, spec = save(model)
            return {name: (tensor.clone(), its_spec) for name, (tensor, its_spec) in kept.items()}, spec

        return save_copy


def our_workers(theirs: dict[Any, Any]) -> dict[Any, Any]:
    """verl's workers by role, with ours in the place of those that train."""
    ours = {ActorRolloutRefWorker: ActorRank, DetachActorWorker: ActorRank, TrainingWorker: Rank}
    kinds = {role: worker.__ray_actor_class__ for role, worker in theirs.items()}
    return {role: ray.remote(ours[kind]) if kind in ours else theirs[role] for role, kind in kinds.items()}
