"""What a run starts with, made from its settings: how to sample, the first servers, one line about it all."""

from __future__ import annotations

from typing import Any

from turnsmith.config import ConfigStore
from turnsmith.inference.engine import Sampling
from turnsmith.trainer.dataset import ENDLESS, CustomEnvironmentDataset
from turnsmith.trainer.driver.cluster import Cluster

_STEPS_IN_EPOCH = 10


def steps_in_epoch(config: ConfigStore, dataset: CustomEnvironmentDataset) -> int:
    """How many steps make an epoch: what the settings say, else what one pass over the dataset takes.

    Example:
        >>> config = ConfigStore()
        >>> steps_in_epoch(config, CustomEnvironmentDataset(seeds=range(9)))  # 4 groups a step
        3
        >>> steps_in_epoch(config, CustomEnvironmentDataset())
        10
    """
    training = config.training
    if training.steps_per_epoch is not None:
        return training.steps_per_epoch
    return _STEPS_IN_EPOCH if len(dataset) == ENDLESS else -(-len(dataset) * training.group_size // training.batch_size)


def training_sampling(config: ConfigStore) -> Sampling:
    """How the model speaks in training."""
    from turnsmith.trainer.config.auto import resolve_backend
    from turnsmith.trainer.verl.rollout_registry import TRANSFORMERS

    inference = config.inference
    return Sampling(
        # Only here is a seed the whole truth; other engines batch as it comes, and seeds would slow them down.
        seed=config.training.seed if resolve_backend(config) == TRANSFORMERS else None,
        max_tokens=inference.max_tokens,
        temperature=inference.temperature,
        top_p=inference.top_p,
        top_k=inference.top_k,
    )


def start_servers_early(config: ConfigStore, cluster: Cluster, model_path: str) -> list[Any]:
    """Our own rollout servers, while the trainer's processes still load; keep what is returned, or they end."""
    from turnsmith.trainer.config.auto import resolve_backend, resolve_dtype
    from turnsmith.trainer.verl.rollout_registry import TRANSFORMERS
    from turnsmith.trainer.verl.transformers.server import start_server

    if resolve_backend(config) != TRANSFORMERS or not cluster.is_local:
        return []
    return [
        start_server(
            rank,
            cluster.node_id(),
            model_path=model_path,
            dtype=resolve_dtype(config),
            max_concurrency=config.inference.max_concurrency,
            trust_remote_code=config.model.trust_remote_code,
        )
        for rank in range(config.ray.gpus_per_node)
    ]


def run_header(config: ConfigStore, environment: str) -> str:
    """One line that says what is trained."""
    from turnsmith.trainer.config.auto import resolve_backend, resolve_device

    training, model = config.training, config.model.local_path or config.model.model_name
    return (
        f"{environment} · {model} · {training.adv_estimator}, {training.batch_size} episodes a step in "
        f"groups of {training.group_size} · {resolve_backend(config)} on {resolve_device(config)}"
    )
