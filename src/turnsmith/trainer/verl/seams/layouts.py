"""The configs that we hand to verl for GPU layouts that no test machine has: verl's own checks accept all of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from turnsmith.trainer.verl.seams.base import holds, same, seam


@dataclass(frozen=True)
class Layout:
    """Machines, and how a model and a batch are spread over them."""

    nodes: int
    gpus: int
    tensor: int = 1
    sequence: int = 1
    schedule: str = "sync"
    rollout_gpus: int = 0
    """With `separate_async`: GPUs on each of these nodes that only generate; 0: as many nodes again do."""

    @property
    def name(self) -> str:
        schedule = "" if self.schedule == "sync" else f"-{self.schedule}"
        gpus = f"{self.gpus}+{self.rollout_gpus}" if self.rollout_gpus else self.gpus
        return f"{self.nodes}x{gpus}-tp{self.tensor}-sp{self.sequence}{schedule}"

    def settings(self) -> list[str]:
        """As on the command line. Two mini-batches a step, each of eight episodes a GPU."""
        ranks = self.nodes * self.gpus
        settings = [
            "model.device=cuda",
            # Whatever this machine has: sequences are only split with flash attention.
            f"model.attn_implementation={'flash_attention_2' if self.sequence > 1 else 'sdpa'}",
            "ray.address=auto",
            f"model.tensor_parallel_size={self.tensor}",
            f"model.sequence_parallel_size={self.sequence}",
            f"training.batch_size={16 * ranks}",
            f"training.mini_batch_size={8 * ranks}",
            f"training.schedule={self.schedule}",
            f"ray.num_nodes={self.nodes}",
            f"ray.gpus_per_node={self.gpus}",
        ]
        if self.schedule != "separate_async":
            return settings
        apart = f"gpus_per_node={self.rollout_gpus}" if self.rollout_gpus else f"nodes={self.nodes}"
        return [*settings, f"ray.rollout_{apart}"]


LAYOUTS = [
    Layout(1, 1),
    Layout(1, 8),
    Layout(1, 8, tensor=2, sequence=2),
    Layout(1, 8, tensor=2, schedule="colocate_async"),
    Layout(1, 4, tensor=2, schedule="separate_async", rollout_gpus=4),
    Layout(4, 8, tensor=4),
    Layout(4, 8, tensor=4, sequence=4),
    Layout(4, 8, tensor=4, schedule="separate_async"),
    Layout(64, 8, tensor=8),
    Layout(64, 8, tensor=8, sequence=8),
]


@cache
def _model_folder() -> str:
    from turnsmith.models import resolve

    return resolve("tiny")


def add_layout(layout: Layout) -> None:
    def check() -> None:
        from turnsmith.config import ConfigStore
        from turnsmith.config_sources import apply_overrides
        from turnsmith.trainer.config.to_verl import keys_we_set
        from turnsmith.trainer.config.verl_defaults import compose
        from turnsmith.trainer.verl.validate import accept

        everything = ["training.adv_estimator=gae", "training.use_kl_loss=true"]  # a critic and a reference as well
        config = apply_overrides(ConfigStore(), [*layout.settings(), *everything])
        parts = accept(compose(keys_we_set(config, model_path=_model_folder())))
        engines = [parts[name].engine for name in ("actor", "ref", "critic")]
        same([engine.ulysses_sequence_parallel_size for engine in engines], [layout.sequence] * 3)
        same({engine.strategy for engine in engines}, {"fsdp2"})
        same(parts["rollout"].tensor_model_parallel_size, layout.tensor)
        # What a worker asserts only when it trains: every rank has whole micro-batches of a mini-batch.
        shares = layout.nodes * layout.gpus // layout.sequence
        for name in ("actor", "critic"):
            episodes = parts[name].ppo_mini_batch_size * parts["rollout"].n
            same(episodes % (shares * parts[name].ppo_micro_batch_size_per_gpu), 0)

    check.__name__ = f"layout.{layout.name}"
    check.__doc__ = f"verl should accept the config of {layout.name} (nodes x GPUs, tensor and sequence parallel sizes)"
    seam("keys_we_set in trainer/config/to_verl.py")(check)


for each in LAYOUTS:
    add_layout(each)


@seam("RayDemand in trainer/config/layout.py")
def cpus_of_ray() -> None:
    """A GPU should take 3 CPUs of Ray (2 of a server apart), TransferQueue 1 a process, storage go where CPUs are"""
    import inspect

    from transfer_queue.controller import TransferQueueController
    from transfer_queue.storage.bootstrap import simple_storage_bootstrap
    from transfer_queue.storage.simple_storage import SimpleStorageUnit
    from verl.single_controller.ray.base import ResourcePoolManager
    from verl.workers.rollout.replica import RolloutReplica

    from turnsmith.trainer.config import layout

    same(ResourcePoolManager.max_colocate_count, layout._CPUS_OF_A_RANK)
    standalone = inspect.getsource(RolloutReplica.init_standalone)
    holds(f"max_colocate_count={layout._CPUS_OF_A_SERVER_GPU}," in standalone)
    actors: list[Any] = [TransferQueueController, SimpleStorageUnit]
    same([actor._default_options["num_cpus"] for actor in actors], [1, 1])
    holds('simple_storage_config.get("required_node_resource")' in inspect.getsource(simple_storage_bootstrap))
