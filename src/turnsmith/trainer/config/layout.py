"""What `auto` means for a run, how a batch of episodes is divided over nodes, ranks and GPUs, errors for sizes that do
not divide, and what a layout asks of Ray.

A rank is one trainer process, on one GPU. verl would fail an assertion somewhere inside a worker; this raises an error
in words before anything starts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import lcm

from turnsmith.config import ConfigStore
from turnsmith.errors import ConfigError
from turnsmith.importing import install_line
from turnsmith.inference.auto import ALONE_ON_GPU, auto_attention, auto_backend, auto_device, auto_dtype
from turnsmith.inference.engine import Sampling
from turnsmith.rollout.players import Players


def resolve_device(config: ConfigStore) -> str:
    """`cpu` or `cuda`."""
    if config.model.device != "auto":
        return config.model.device
    # A cluster that is joined by its address is taken to have GPUs, whatever this machine has.
    return "cuda" if config.ray.address else auto_device()


def resolve_backend(config: ConfigStore) -> str:
    """The name of the engine."""
    if config.inference.backend != "auto":
        return config.inference.backend
    return auto_backend(resolve_device(config))


def resolve_dtype(config: ConfigStore) -> str:
    """The dtype in which trainer and engine compute."""
    return auto_dtype(resolve_device(config)) if config.model.dtype == "auto" else config.model.dtype


def resolve_attention(config: ConfigStore) -> str:
    """How the trainer computes attention."""
    chosen = config.model.attn_implementation
    return auto_attention(resolve_device(config), resolve_dtype(config)) if chosen == "auto" else chosen


def gpu_share(config: ConfigStore) -> float:
    """The fraction of a GPU's memory that a rollout engine takes.

    Example:
        >>> config = ConfigStore()
        >>> config.training.schedule = "separate_async"
        >>> gpu_share(ConfigStore()), gpu_share(config)
        (0.5, 0.85)
    """
    usual = ALONE_ON_GPU if config.training.schedule == "separate_async" else 0.5
    return config.inference.gpu_memory_utilization or usual


def learning_rate(config: ConfigStore) -> float:
    """The learning rate of the model."""
    return config.training.learning_rate or (1e-5 if config.model.lora_rank else 1e-6)


def save_minutes(config: ConfigStore) -> float:
    """Minutes between two checkpoints; 0: they are saved by epochs, or never."""
    chosen, interval = config.checkpoint.save_minutes, config.checkpoint.save_interval
    if chosen is not None:
        return chosen
    by_epochs = not interval or resolve_device(config) == "cpu" or Players.of(config.players).has_self
    return 0.0 if by_epochs else _SAVE_MINUTES


def sends_adapter(config: ConfigStore) -> bool:
    """Whether the engine gets the adapter itself, and not weights with the adapter merged into them."""
    return config.model.lora_rank > 0 and not config.model.lora_merge


def training_sampling(config: ConfigStore) -> Sampling:
    """How to sample a turn in training."""
    inference = config.inference
    return Sampling(
        # Only the transformers engine makes a run repeatable; in others a seed per request would only cost time.
        seed=config.training.seed if resolve_backend(config) == "transformers" else None,
        max_tokens=inference.max_tokens,
        temperature=inference.temperature,
        top_p=inference.top_p,
        top_k=inference.top_k,
    )


_MICRO_BATCH_TOKENS = 16_384
_SAVE_MINUTES = 30.0
_CPUS_OF_A_RANK = 3
"""verl reserves this many CPUs of Ray with each GPU (`ResourcePoolManager.max_colocate_count`)."""
_CPUS_OF_A_SERVER_GPU = 2
"""The same for each GPU of a rollout server that has GPUs of its own (`RolloutReplica.init_standalone`)."""
_CPUS_TO_PLACE_SERVERS = 1
"""A rollout server needs a free CPU while it is placed, and none later."""


@dataclass(frozen=True)
class RayDemand:
    """What verl and turnsmith ask of Ray. A process that does not get its share waits for it silently."""

    nodes: int
    """Nodes that train."""
    gpus: int
    """GPUs of each of them."""
    cpus: int
    """CPUs of each of them, for its ranks and rollout servers."""
    storage_units: int
    """Storage processes of TransferQueue, one CPU each, spread evenly over all nodes that have CPUs."""
    rollout_nodes: int = 0
    """Nodes that only generate."""
    rollout_gpus: int = 0
    """GPUs of each of them."""
    rollout_cpus: int = 0
    """CPUs of each of them, for its rollout servers."""

    @classmethod
    def of(cls, config: ConfigStore) -> RayDemand:
        """What a run with these settings asks for.

        Example:
            >>> config = ConfigStore()
            >>> config.model.device, config.training.schedule = "cuda", "separate_async"
            >>> config.ray.gpus_per_node = config.ray.rollout_gpus_per_node = 4
            >>> RayDemand.of(config)  # one machine of eight GPUs, split
            RayDemand(nodes=1, gpus=8, cpus=21, storage_units=2, rollout_nodes=0, rollout_gpus=0, rollout_cpus=0)
        """
        ray, units = config.ray, storage_units(config)
        trainers = cls(
            ray.num_nodes, ray.gpus_per_node, _CPUS_OF_A_RANK * ray.gpus_per_node + _CPUS_TO_PLACE_SERVERS, units
        )
        if config.training.schedule != "separate_async":
            return trainers
        nodes, gpus = rollout_layout(config)
        if not ray.rollout_nodes:
            cpus = trainers.cpus + _CPUS_OF_A_SERVER_GPU * gpus
            return replace(trainers, gpus=trainers.gpus + gpus, cpus=cpus)
        return replace(trainers, rollout_nodes=nodes, rollout_gpus=gpus, rollout_cpus=server_cpus(gpus))

    @property
    def total_gpus(self) -> int:
        """GPUs of all nodes."""
        return self.nodes * self.gpus + self.rollout_nodes * self.rollout_gpus

    @property
    def total_cpus(self) -> int:
        """All CPUs, with one for TransferQueue's controller."""
        return self.nodes * self.cpus + self.rollout_nodes * self.rollout_cpus + self.storage_units + 1


def all_nodes(config: ConfigStore) -> int:
    """Number of nodes with GPUs."""
    return config.ray.num_nodes + config.ray.rollout_nodes


def rollout_layout(config: ConfigStore) -> tuple[int, int]:
    """Number of nodes with rollout servers, and the GPUs that the servers have on each.

    Example:
        >>> config = ConfigStore()
        >>> config.ray.num_nodes, config.ray.gpus_per_node = 2, 8
        >>> rollout_layout(config)  # those that train
        (2, 8)
        >>> config.training.schedule, config.ray.rollout_gpus_per_node = "separate_async", 4
        >>> rollout_layout(config)
        (2, 4)
    """
    ray = config.ray
    if config.training.schedule != "separate_async":
        return ray.num_nodes, ray.gpus_per_node
    return ray.rollout_nodes or ray.num_nodes, ray.rollout_gpus_per_node or ray.gpus_per_node


def server_cpus(gpus: int) -> int:
    """CPUs that rollout servers with so many GPUs of their own ask of Ray, on a node that only generates."""
    return _CPUS_OF_A_SERVER_GPU * gpus + _CPUS_TO_PLACE_SERVERS


def storage_units(config: ConfigStore) -> int:
    """Storage processes of TransferQueue: two a node, as its documentation advises; on CPUs one a node does."""
    return all_nodes(config) * (1 if resolve_device(config) == "cpu" else 2)


def episode_workers(config: ConfigStore) -> int:
    """Processes that run episodes, besides the task runner; 0: the task runner runs them itself.

    One Python process gets through some ten thousand turns of long episodes a minute, about what two GPUs sample. A CPU
    samples far fewer.

    Example:
        >>> config = ConfigStore()
        >>> config.model.device, config.ray.num_nodes, config.ray.gpus_per_node = "cuda", 4, 8
        >>> config.training.batch_size = 512
        >>> episode_workers(config)
        16
    """
    if config.ray.num_actors is not None:
        return config.ray.num_actors
    if resolve_device(config) == "cpu":
        return 0 if config.ray.num_nodes == 1 else config.ray.num_nodes
    groups = config.training.batch_size // config.training.group_size  # a group stays in one process
    return min(groups, all_nodes(config) * max(2, config.ray.gpus_per_node // 2))


def layout_words(config: ConfigStore) -> str:
    """The processes of a run, in a few words.

    Example:
        >>> config = ConfigStore()
        >>> config.model.device, config.ray.gpus_per_node = "cuda", 8
        >>> layout_words(config)
        '1 node, 8 ranks, 8 servers of vllm, 4 episode workers'
    """
    nodes, gpus = rollout_layout(config)
    servers = nodes * gpus // config.model.tensor_parallel_size
    counted = {"node": all_nodes(config), "rank": trainer_ranks(config), "server": servers}
    words = [f"{count} {name}{'s' * (count != 1)}" for name, count in counted.items()]
    return f"{', '.join(words)} of {resolve_backend(config)}, {episode_workers(config)} episode workers"


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


def micro_batch_tokens(config: ConfigStore) -> int:
    """Tokens per forward pass of one rank; 0: `micro_batch_size` holds instead.

    Example:
        >>> config = ConfigStore()
        >>> config.model.device, config.inference.max_episode_tokens = "cuda", 30_000
        >>> micro_batch_tokens(config)  # those of the longest episode
        32048
    """
    chosen = config.training.micro_batch_tokens
    if chosen is not None or resolve_device(config) == "cpu":
        return chosen or 0
    return max(_MICRO_BATCH_TOKENS, longest_share(config))


def half_micro_batch(config: ConfigStore) -> str | None:
    """The setting with which a forward pass needs half the memory; None: it is as small as it can be.

    Example:
        >>> config = ConfigStore()
        >>> config.model.device = "cuda"
        >>> half_micro_batch(config)
        'training.micro_batch_tokens=8192'
    """
    tokens, episodes = micro_batch_tokens(config), micro_batch_size(config)
    if tokens:
        half = max(tokens // 2, longest_share(config))
        return f"training.micro_batch_tokens={half}" if half < tokens else None
    return f"training.micro_batch_size={episodes // 2}" if episodes > 1 else None


def longest_share(config: ConfigStore) -> int:
    """The tokens of the longest episode that one rank computes."""
    inference = config.inference
    return -(-(inference.max_prompt_tokens + inference.max_episode_tokens) // config.model.sequence_parallel_size)


def check_layout(config: ConfigStore) -> None:
    """Raise a ConfigError for sizes that do not divide evenly over nodes and GPUs."""
    _check_sequence_parallel(config)
    if 0 < micro_batch_tokens(config) < longest_share(config):
        raise ConfigError(
            f"training.micro_batch_tokens={config.training.micro_batch_tokens} is less than the longest episode of "
            f"{longest_share(config)} tokens (inference.max_prompt_tokens plus max_episode_tokens): raise it, or lower "
            "those."
        )
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
    if not resolve_attention(config).startswith("flash_attention"):
        raise ConfigError(
            f"model.sequence_parallel_size={size} needs flash attention, which is not installed or not chosen: "
            f"{install_line('flash-attn', '--no-build-isolation')}, or set model.attn_implementation=flash_attention_2 "
            "if the machines of the cluster have it."
        )


def _check_tensor_parallel(config: ConfigStore) -> None:
    size, (nodes, per_node) = config.model.tensor_parallel_size, rollout_layout(config)
    within_a_node = per_node % size == 0
    whole_nodes = size % per_node == 0 and nodes % (size // per_node) == 0
    if not within_a_node and not whole_nodes:
        fitting = [count for count in range(1, per_node + 1) if per_node % count == 0]
        fitting += [count * per_node for count in range(2, nodes + 1) if nodes % count == 0]
        raise ConfigError(
            f"model.tensor_parallel_size={size} does not fit {nodes} nodes of {per_node} GPUs: a rollout engine is "
            f"inside one node or fills whole nodes. Use one of {', '.join(map(str, fitting))}."
        )
