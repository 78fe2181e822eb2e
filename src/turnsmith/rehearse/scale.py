"""The settings of a run, scaled to the machine that rehearses it."""

from __future__ import annotations

from math import lcm
from typing import Any

from turnsmith.config import ConfigStore
from turnsmith.config_sources import from_dict, to_dict
from turnsmith.trainer.config.auto import resolve_attention, resolve_backend, resolve_device, resolve_dtype
from turnsmith.trainer.config.layout import all_nodes, episode_workers, trainer_ranks

STEPS = 4
"""Steps that a rehearsal makes: a checkpoint after the second, a kill in the fourth, so the third is made twice."""
_MANY_EPISODES = 64
_TURN_TOKENS = 12
_EVALUATED = 8
_SAVE_EVERY = 2
_ENDLESS = 1000


def scaled_config(config: ConfigStore, gpus: int = 0) -> ConfigStore:
    """The same run on one machine: group size, updates a step, schedule, isolation and failure policy stay.

    Args:
        config: The settings of the whole run.
        gpus: How many GPUs this machine has.

    Example:
        >>> config = ConfigStore()
        >>> config.ray.num_nodes, config.ray.gpus_per_node, config.ray.address = 4, 8, "auto"
        >>> config.training.batch_size, config.training.mini_batch_size = 512, 256
        >>> small = scaled_config(config)
        >>> small.ray.gpus_per_node, small.training.batch_size, small.training.mini_batch_size
        (2, 16, 8)
    """
    if gpus < 2 and config.training.schedule == "separate_async":
        gpus = 0  # it needs one to train and one to generate
    small = from_dict(to_dict(config))
    small.ray.address, small.ray.num_nodes, small.ray.rollout_nodes = None, 1, 0
    small.ray.num_actors = min(2, episode_workers(config))
    _scale_layout(config, small, gpus)
    _scale_batch(config, small)
    if not gpus:  # what only a GPU has; the engine that is quickest to start on a CPU
        small.model.device, small.model.dtype, small.model.attn_implementation = "cpu", "float32", "auto"
        small.inference.backend = "transformers"
    limits, saving = small.inference, small.checkpoint
    limits.max_tokens = min(limits.max_tokens, _TURN_TOKENS)
    limits.max_turn_tokens = limits.max_turn_tokens and min(limits.max_turn_tokens, _TURN_TOKENS)
    small.training.steps_per_epoch, small.training.num_epochs = 1, _ENDLESS
    small.training.check = small.training.filter_groups = False
    small.evaluation.every = small.evaluation.every and _SAVE_EVERY
    small.evaluation.episodes = min(small.evaluation.episodes, _EVALUATED)
    saving.save_interval = saving.save_interval and _SAVE_EVERY
    small.logging.trackers = []
    return small


def _scale_layout(config: ConfigStore, small: ConfigStore, gpus: int) -> None:
    apart = config.training.schedule == "separate_async"
    most = max(1, gpus // 2 if apart else gpus) if gpus else (1 if apart else 2)
    small.ray.gpus_per_node = min(trainer_ranks(config), most)
    small.ray.rollout_gpus_per_node = small.ray.gpus_per_node if apart else None
    for name in ("tensor_parallel_size", "sequence_parallel_size"):
        size = getattr(config.model, name)
        setattr(small.model, name, size if gpus and small.ray.gpus_per_node % size == 0 else 1)


def _scale_batch(config: ConfigStore, small: ConfigStore) -> None:
    """As few groups as divide over the ranks, and as many updates a step as the run has."""
    training, ranks = config.training, trainer_ranks(small)
    updates = training.batch_size // (training.mini_batch_size or training.batch_size)
    least = lcm(ranks, training.group_size)
    if updates == 1 and least == training.group_size:
        least *= 2  # one group has nothing beside it
    while updates > 1 and updates * least > max(_MANY_EPISODES, 2 * least):
        updates //= 2
    small.training.batch_size = updates * least
    small.training.mini_batch_size = least if training.mini_batch_size else None
    small.training.micro_batch_size = 1  # logits of a real vocabulary are what needs the memory


def changed_settings(config: ConfigStore, small: ConfigStore) -> dict[str, tuple[Any, Any]]:
    """Every setting that a rehearsal changed, with both values.

    Example:
        >>> config = ConfigStore()
        >>> small = from_dict(to_dict(config))
        >>> small.training.batch_size = 8
        >>> changed_settings(config, small)
        {'training.batch_size': (32, 8)}
    """
    before, after = to_dict(config), to_dict(small)
    return {
        f"{section}.{name}": (value, after[section].get(name))
        for section, settings in before.items()
        for name, value in settings.items()
        if after[section].get(name) != value
    }


def not_executed(config: ConfigStore, small: ConfigStore, model: str) -> dict[str, str]:
    """What the rehearsal of a run cannot execute here, each with the reason.

    Example:
        >>> list(not_executed(ConfigStore(), scaled_config(ConfigStore()), "Qwen/Qwen3-0.6B"))[0]
        'the weights and the architecture of Qwen/Qwen3-0.6B'
    """
    weights = {f"the weights and the architecture of {model}": "a random Llama of two layers was trained instead"}
    return weights | _of_machine(config, small) | _of_settings(config, small)


def _of_machine(config: ConfigStore, small: ConfigStore) -> dict[str, str]:
    found = dict[str, str]()
    nodes, ranks = all_nodes(config), trainer_ranks(config)
    if nodes > 1:
        found[f"{nodes} nodes"] = "one machine was used: no network between nodes, no shared folder, no second host"
    if ranks > trainer_ranks(small):
        found[f"{ranks} ranks"] = f"{trainer_ranks(small)} were used, with the same code"
    for name in ("tensor_parallel_size", "sequence_parallel_size"):
        size = getattr(config.model, name)
        if size != getattr(small.model, name):
            found[f"model.{name}={size}"] = "it needs as many GPUs"
    if resolve_device(config) == "cuda" and resolve_device(small) == "cpu":
        found["GPU memory, CUDA kernels, NCCL"] = "CPUs were used; processes were connected by gloo"
        found[f"{resolve_dtype(config)}, attention by {resolve_attention(config)}"] = "float32 and sdpa on a CPU"
    if resolve_backend(config) != resolve_backend(small):
        found[f"the engine {resolve_backend(config)}"] = f"{resolve_backend(small)} generated"
    return found


def _of_settings(config: ConfigStore, small: ConfigStore) -> dict[str, str]:
    episodes, played = config.training.batch_size, small.training.batch_size
    reasons = {
        f"a batch of {episodes} episodes": f"{played} were played a step" if episodes != played else "",
        f"the trackers {', '.join(config.logging.trackers)}": config.logging.trackers
        and "a rehearsal is not sent to them",
        "training.filter_groups": config.training.filter_groups and "a random model gets equal rewards in most groups",
        "evaluation": "" if config.evaluation.every else "evaluation.every=0",
        "checkpoint and resume": "" if config.checkpoint.save_interval else "checkpoint.save_interval=0",
    }
    return {what: str(why) for what, why in reasons.items() if why}
