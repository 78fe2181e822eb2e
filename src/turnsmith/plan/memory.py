"""The memory of every kind of process: what it has without a model, and the model's part."""

from __future__ import annotations

from math import prod

from turnsmith.config import ConfigStore
from turnsmith.plan.calibrate import Calibration
from turnsmith.plan.model_shape import ModelShape
from turnsmith.trainer.config.layout import episode_workers, rollout_layout, trainer_ranks

_FLOAT32 = 4
_TRAINED = 4
"""Copies of all weights in a trainer rank: weights, gradients and two moments of Adam."""


def cpu_memory(
    config: ConfigStore, shape: ModelShape, base: dict[str, float], measured: Calibration
) -> dict[str, float]:
    """Bytes of each kind of process of a run on a CPU, and of `all`.

    Args:
        config: The settings.
        shape: The model's.
        base: Bytes of each kind with a model that has almost no weights (`Reference.memory`).
        measured: With this model.
    """
    ranks, servers = trainer_ranks(config), prod(rollout_layout(config))
    weights, training = _FLOAT32 * shape.parameters, config.training
    state = _TRAINED * weights
    kept = state if config.model.lora_rank == 0 else weights
    more = state * (training.adv_estimator == "gae") + weights * (training.use_kl_loss or training.use_kl_in_reward)
    rank = measured.training - state + (kept + more) / ranks
    found = {
        "trainer rank": ranks * (base["trainer rank"] + rank),
        "rollout server": servers * (base["rollout server"] + measured.serving),
        "task runner": base["task runner"],
        "data queue": base["data queue"],
        "other": base["other"],
    }
    if workers := episode_workers(config):
        found["episode worker"] = workers * base["task runner"]
    if config.environment.isolation == "process":
        found["environment workers"] = base["environment workers"]
    if training.schedule == "separate_async":
        found["weight receiver"] = servers * base["task runner"]  # it imports the same, and keeps nothing
    # The kinds do not all have their most at the same time, so what is known about all of them is better than the sum.
    return found | {"all": base["all"] + sum(size - base.get(kind, 0.0) for kind, size in found.items())}
