"""GPU layouts that no test machine has."""

from __future__ import annotations

from dataclasses import dataclass


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
