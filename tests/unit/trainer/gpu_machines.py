"""Machines with GPUs that no test machine is, and sizes of published models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from turnsmith.inference.models.shape import ModelShape
from turnsmith.trainer.driver.machine_facts import Gpu, Machine

GIB = 2.0**30
H100 = Gpu("NVIDIA H100 80GB HBM3", 79.6 * GIB, 9.0)
A100 = Gpu("NVIDIA A100-SXM4-40GB", 39.4 * GIB, 8.0)
RTX4090 = Gpu("NVIDIA GeForce RTX 4090", 24.0 * GIB, 8.9)
T4 = Gpu("Tesla T4", 15.0 * GIB, 7.5)
V100 = Gpu("Tesla V100-SXM2-32GB", 32.0 * GIB, 7.0)
T1000 = Gpu("NVIDIA T1000", 4.0 * GIB, 7.5)
"""The card of a screen."""

EIGHT_H100 = Machine("this machine", "580.95.05", "13.0", (H100,) * 8, 64 * GIB, 65536, 4000 * GIB)
ONE_4090 = Machine("this machine", "581.29", "13.0", (RTX4090,), 31 * GIB, 65536, 500 * GIB)


def qwen3(hidden: int, layers: int, heads: int, intermediate: int, *, tied: bool) -> ModelShape:
    """One of Qwen3's sizes, from its published config.json."""
    sizes: dict[str, Any] = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    sizes |= {"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": intermediate, "vocab_size": 151936}
    return ModelShape.of_config({**sizes, "max_position_embeddings": 40960, "tie_word_embeddings": tied})


QWEN3 = {
    "0.6B": qwen3(1024, 28, 16, 3072, tied=True),
    "4B": qwen3(2560, 36, 32, 9728, tied=True),
    "8B": qwen3(4096, 36, 32, 12288, tied=False),
    "14B": qwen3(5120, 40, 40, 17408, tied=False),
    "32B": qwen3(5120, 64, 64, 25600, tied=False),
}


@dataclass(frozen=True)
class Case:
    """A run on machines, and what is said of them."""

    name: str
    model: str
    """A size of Qwen3."""
    settings: str
    machines: tuple[Machine, ...]
    refused: str = ""


E8 = "ray.gpus_per_node=8 training.batch_size=64"
CLUSTER = "ray.address=auto ray.gpus_per_node=8"


def nodes(number: int, **changed: Any) -> tuple[Machine, ...]:
    return tuple(replace(EIGHT_H100, name=f"10.0.0.{place}", **changed) for place in range(1, number + 1))


def here(machine: Machine = EIGHT_H100, **changed: Any) -> tuple[Machine, ...]:
    return (replace(machine, **changed),)


TOO_LITTLE = (
    Case(
        "a driver of CUDA 12",
        "0.6B",
        E8,
        here(driver="535.183.01"),
        "On this machine, NVIDIA's driver is 535.183.01, but the installed torch is built for CUDA 13.0, which "
        "needs 580.65 or later: update the driver. With NVIDIA's package cuda-compat an older one may do: then "
        "set ray.force=true.",
    ),
    Case(
        "an older driver, and an older torch",
        "0.6B",
        E8,
        here(driver="470.256.02", cuda="12.8"),
        "On this machine, NVIDIA's driver is 470.256.02, but the installed torch is built for CUDA 12.8, which "
        "needs 525.60 or later: update the driver. With NVIDIA's package cuda-compat an older one may do: then "
        "set ray.force=true.",
    ),
    Case(
        "a torch for CPUs",
        "0.6B",
        E8,
        here(cuda=""),
        "On this machine, the installed torch is not built for CUDA and cannot use the GPUs: install the packages"
        " of locks/vllm.txt there, or set model.device=cpu.",
    ),
    Case(
        "a card without bfloat16",
        "0.6B",
        "",
        here(ONE_4090, gpus=(T4,)),
        "On this machine, Tesla T4 has compute capability 7.5, but model.dtype=bfloat16 with CUDA 13.0 needs 8.0:"
        " use newer GPUs, or set model.dtype=float32.",
    ),
    Case(
        "a card that CUDA 13 has left behind",
        "0.6B",
        "model.dtype=float32",
        here(ONE_4090, gpus=(V100,)),
        "On this machine, Tesla V100-SXM2-32GB has compute capability 7.0, but model.dtype=float32 with CUDA 13.0"
        " needs 7.5: use newer GPUs.",
    ),
    Case(
        "a model made for shorter episodes",
        "8B",
        f"{E8} inference.max_prompt_tokens=8192 inference.max_episode_tokens=65536",
        here(),
        "inference.max_prompt_tokens=8192 and max_episode_tokens=65536 make 73,728 tokens, but the model is made "
        "for 40,960 (its config.json): lower one of them.",
    ),
    Case(
        "a small card",
        "4B",
        "",
        here(ONE_4090),
        "On this machine, an update needs at least 59.9 GiB on each GPU, and NVIDIA GeForce RTX 4090 has 24 GiB: "
        "raise ray.gpus_per_node or ray.num_nodes, or set model.lora_rank.",
    ),
    Case(
        "weights above the engine's share",
        "32B",
        f"{E8} model.lora_rank=16",
        here(),
        "On this machine, the engine's share of NVIDIA H100 80GB HBM3 is 39.8 GiB "
        "(inference.gpu_memory_utilization=0.5), but its weights take 61 GiB: raise that, or "
        "model.tensor_parallel_size.",
    ),
    Case(
        "no room for one longest episode",
        "8B",
        f"{E8} model.lora_rank=16 inference.max_prompt_tokens=8000 inference.max_episode_tokens=32000 "
        "inference.gpu_memory_utilization=0.25",
        here(),
        "On this machine, the weights leave 4.64 GiB of the engine's share of NVIDIA H100 80GB HBM3, but keys and"
        " values of one longest episode take 5.49 GiB: lower inference.max_episode_tokens, or raise "
        "inference.gpu_memory_utilization or model.tensor_parallel_size.",
    ),
    Case(
        "no room for the engine beside the trainer",
        "8B",
        "ray.gpus_per_node=2",
        here(),
        "On this machine, the engine's share and what the trainer keeps between two updates are 85.6 GiB, but "
        "NVIDIA H100 80GB HBM3 has 79.6 GiB: lower inference.gpu_memory_utilization from 0.5 to 0.42 or less, "
        "raise ray.gpus_per_node, or set training.offload=optimizer or model.lora_rank.",
    ),
    Case(
        "a container with Docker's /dev/shm",
        "0.6B",
        E8,
        here(shared_memory=64 * 2.0**20),
        "On this machine, /dev/shm has 64 MiB, but the GPUs of a node exchange data there, which needs 1 GiB: "
        "start the container with --shm-size=16g (Kubernetes: an emptyDir with medium Memory at /dev/shm), or set"
        " ray.gpus_per_node=1.",
    ),
    Case(
        "a low ulimit -n",
        "0.6B",
        f"{CLUSTER} ray.num_nodes=64 training.batch_size=512",
        nodes(64, open_files=1024),
        "On 10.0.0.1, a process may have 1,024 files and connections open, but those of this layout need up to "
        "3,968: run `ulimit -n 65536` before turnsmith starts, and before `ray start` on a cluster, or lower "
        "ray.num_nodes.",
    ),
    Case(
        "a small disk",
        "8B",
        f"{E8} checkpoint.output_dir=/data/runs",
        here(disk=100 * GIB),
        "On this machine, 100 GiB are free in checkpoint.output_dir=/data/runs, but the checkpoints that the run "
        "keeps take 244 GiB: set it to a larger disk, or lower checkpoint.keep_last_n=2.",
    ),
    Case(
        "one node with an older driver",
        "0.6B",
        f"{CLUSTER} ray.num_nodes=2 training.batch_size=64",
        (*nodes(1), *here(name="10.0.0.9", driver="550.54.15")),
        "On 10.0.0.9, NVIDIA's driver is 550.54.15, but the installed torch is built for CUDA 13.0, which needs "
        "580.65 or later: update the driver. With NVIDIA's package cuda-compat an older one may do: then set "
        "ray.force=true.",
    ),
)
"""Machines that lack one thing, and the sentence."""

APART = "training.schedule=separate_async ray.num_nodes=4 ray.rollout_nodes=4 training.batch_size=256"
ENOUGH = (
    Case("one card of 24 GB", "0.6B", "", here(ONE_4090)),
    Case("with a card for the screen", "0.6B", "", here(ONE_4090, gpus=(T1000, RTX4090))),
    Case("LoRA on 24 GB", "4B", "model.lora_rank=32 inference.gpu_memory_utilization=0.35", here(ONE_4090)),
    Case("LoRA on 80 GB", "4B", "model.lora_rank=32", here(gpus=(H100,))),
    Case("eight H100", "8B", E8, here()),
    Case("eight A100 of 40 GB, CUDA 12", "0.6B", E8, here(gpus=(A100,) * 8, cuda="12.6", driver="525.60.13")),
    Case("tensor parallelism", "32B", f"{E8} model.lora_rank=16 model.tensor_parallel_size=2", here()),
    Case("four nodes train and four generate", "32B", f"{CLUSTER} {APART} model.tensor_parallel_size=4", nodes(8)),
    Case(
        "an offloaded optimizer",
        "14B",
        f"{E8} training.offload=all",
        here(driver="590.12"),
    ),
    Case("a driver of which nothing is known", "8B", E8, here(driver="", gpus=(), cuda="")),
    Case("a driver with a longer number", "0.6B", E8, here(driver="580.105.08")),
    Case("a CPU", "32B", "model.device=cpu", here(Machine("this machine"))),
)
"""Machines of which nothing is said."""
