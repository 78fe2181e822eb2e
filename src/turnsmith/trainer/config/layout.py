"""How a batch of episodes is divided over nodes, ranks and GPUs, and errors for sizes that do not divide.

A rank is one trainer process, on one GPU. verl would fail an assertion somewhere inside a worker; this raises an error
in words before anything starts.
"""

from __future__ import annotations

from math import lcm

from turnsmith.config import ConfigStore
from turnsmith.errors import ConfigError
from turnsmith.trainer.config.auto import resolve_attention, resolve_device


def trainer_ranks(config: ConfigStore) -> int:
    """Number of trainer processes."""
    return config.ray.num_nodes * config.ray.gpus_per_node


def batch_shares(config: ConfigStore) -> int:
    """Number of parts that a batch is split into: ranks of one sequence-parallel group share a part."""
    return max(1, trainer_ranks(config) // config.model.sequence_parallel_size)


def micro_batch_size(config: ConfigStore) -> int:
    """Episodes per forward pass: the largest allowed divisor of a rank's share of a mini-batch."""
    training = config.training
    share = max(1, (training.mini_batch_size or training.batch_size) // batch_shares(config))
    return next(size for size in range(min(training.micro_batch_size, share), 0, -1) if share % size == 0)


def check_layout(config: ConfigStore) -> None:
    """Raise a ConfigError for sizes that do not divide evenly over nodes and GPUs."""
    _check_sequence_parallel(config)
    _check_tensor_parallel(config)
    ranks, training = trainer_ranks(config), config.training
    over = f"{ranks} ranks (ray.num_nodes={config.ray.num_nodes} x ray.gpus_per_node={config.ray.gpus_per_node})"
    if training.batch_size % ranks:
        raise ConfigError(
            f"training.batch_size={training.batch_size} episodes do not divide evenly over {over}: set it to a "
            f"multiple of {lcm(ranks, training.group_size)}."
        )
    mini_batch = training.mini_batch_size or training.batch_size
    if mini_batch % batch_shares(config):
        raise ConfigError(
            f"training.mini_batch_size={mini_batch} episodes do not divide evenly over {over}: set it to a "
            f"multiple of {lcm(batch_shares(config), training.group_size)} that divides training.batch_size="
            f"{training.batch_size}."
        )


def _check_sequence_parallel(config: ConfigStore) -> None:
    size = config.model.sequence_parallel_size
    if size == 1:
        return
    if resolve_device(config) == "cpu":
        raise ConfigError(
            f"model.sequence_parallel_size={size} needs GPUs: verl uses flash attention to split sequences without "
            "padding. Set it to 1 on a CPU."
        )
    if trainer_ranks(config) % size:
        raise ConfigError(
            f"model.sequence_parallel_size={size} does not divide the {trainer_ranks(config)} GPUs that train "
            f"(ray.num_nodes={config.ray.num_nodes} x ray.gpus_per_node={config.ray.gpus_per_node})."
        )
    if resolve_attention(config) != "flash_attention_2":
        raise ConfigError(
            f"model.sequence_parallel_size={size} needs flash attention, which is not installed or not chosen: pip "
            "install --no-build-isolation 'turnsmith[flash-attn]', or set model.attn_implementation=flash_attention_2 "
            "if the machines of the cluster have it."
        )


def _check_tensor_parallel(config: ConfigStore) -> None:
    size, per_node = config.model.tensor_parallel_size, config.ray.gpus_per_node
    nodes = config.ray.rollout_nodes or config.ray.num_nodes
    within_a_node = per_node % size == 0
    whole_nodes = size % per_node == 0 and nodes % (size // per_node) == 0
    if not within_a_node and not whole_nodes:
        fitting = [count for count in range(1, per_node + 1) if per_node % count == 0]
        fitting += [count * per_node for count in range(2, nodes + 1) if nodes % count == 0]
        raise ConfigError(
            f"model.tensor_parallel_size={size} does not fit {nodes} nodes of {per_node} GPUs: a rollout engine is "
            f"inside one node or fills whole nodes. Use one of {', '.join(map(str, fitting))}."
        )
