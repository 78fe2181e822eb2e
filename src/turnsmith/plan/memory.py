"""The memory of every kind of process: what it has without a model, and the model's part."""

from __future__ import annotations

from math import prod

from turnsmith.config import ConfigStore
from turnsmith.env.isolation.settings import Isolation
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.models.shape import ModelShape
from turnsmith.plan.calibrate import Calibration
from turnsmith.trainer.advantages import get_estimator
from turnsmith.trainer.config.layout import episode_workers, rollout_layout, trainer_ranks

_FLOAT32 = 4
_TRAINED = 4
"""Copies of all weights in a trainer rank: weights, gradients and two moments of Adam."""


def environment_workers(config: ConfigStore, environment: EnvironmentSpec | None) -> int:
    """Worker processes that environments run in; None: an environment of the user's own.

    Example:
        >>> config = ConfigStore()
        >>> config.environment.isolation_workers, config.ray.num_actors = 4, 2
        >>> environment_workers(config, None)
        8
        >>> environment_workers(config, EnvironmentSpec.of("turnsmith.env.examples:GuessNumber"))
        0
    """
    if environment is None:
        mode = config.environment.isolation
        places = {Isolation.of(config.environment, "process" if mode == "auto" else mode)}
    else:
        places = {Isolation.of(spec.config, spec.isolation) for spec in environment.isolated().each()}
    # Each process that plays episodes starts workers of its own, and environments with the same settings share them.
    return max(1, episode_workers(config)) * sum(one.workers for one in places if one.mode == "process")


def cpu_memory(
    config: ConfigStore, shape: ModelShape, base: dict[str, float], measured: Calibration, workers: int
) -> dict[str, float]:
    """Bytes of each kind of process of a run on a CPU, and of `all`.

    Args:
        config: The settings.
        shape: The model's.
        base: Bytes of each kind with a model that has almost no weights and one environment worker
            (`Reference.memory`).
        measured: With this model.
        workers: Worker processes of environments.
    """
    ranks, servers = trainer_ranks(config), prod(rollout_layout(config))
    weights, training = _FLOAT32 * shape.parameters, config.training
    state = _TRAINED * weights
    kept = state if config.model.lora_rank == 0 else weights
    critic = state * get_estimator(training.adv_estimator).needs_critic
    # With LoRA, the reference model is the actor without its adapter.
    reference = weights * (training.use_kl_loss or training.use_kl_in_reward) * (config.model.lora_rank == 0)
    rank = measured.training - state + (kept + critic + reference) / ranks
    found = {
        "trainer rank": ranks * (base["trainer rank"] + rank),
        "rollout server": servers * (base["rollout server"] + measured.serving),
        "task runner": base["task runner"],
        "data queue": base["data queue"],
        "other": base["other"],
        "environment workers": workers * base["environment workers"],
    }
    if players := episode_workers(config):
        found["episode worker"] = players * base["task runner"]
    if training.schedule == "separate_async":
        found["weight receiver"] = servers * base["task runner"]  # it imports the same, and keeps nothing
    # The kinds do not all have their most at the same time, so what is known about all of them is better than the sum.
    return found | {"all": base["all"] + sum(size - base.get(kind, 0.0) for kind, size in found.items())}
