"""verl's losses, in which each episode counts once, in however many rows it is."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.utils.losses import ppo_loss, value_loss

from turnsmith.trainer.row_weights import counts_episodes

ROW_WEIGHTS = "row_weights"
"""The field of verl's batch with the `row_weights`, on each token; only with a mean over episodes."""


def count_episodes(config: Any, actor: Any, critic: Any | None) -> None:
    """Have the ranks of verl's worker groups use losses that read `ROW_WEIGHTS`, where an aggregation needs them.

    Args:
        config: verl's whole config.
        actor: The worker group of the actor.
        critic: That of the critic, if there is one.
    """
    for group, part, loss in ((actor, config.actor_rollout_ref.actor, ppo_loss), (critic, config.critic, value_loss)):
        if group is not None and counts_episodes(part.loss_agg_mode):
            group.set_loss_fn(partial(weighted_loss, partial(loss, config=omega_conf_to_dataclass(part))))


def weighted_loss(loss: Any, model_output: dict[str, Any], data: Any, dp_group: Any = None) -> Any:
    """A loss of verl's with the gradient of each row multiplied by its weight.

    The weight is on what the loss is computed from, because every part of it (policy, entropy, KL, value) has it from
    there. The value of the loss, a metric, counts rows, as verl's other metrics do.
    """
    if ROW_WEIGHTS in data:
        weights = data[ROW_WEIGHTS]
        first = weights.values()[weights.offsets()[:-1]]
        model_output = {
            name: _weighted(output, first) if name in ("log_probs", "entropy", "values") else output
            for name, output in model_output.items()
        }
    return loss(model_output=model_output, data=data, dp_group=dp_group)


def _weighted(output: Any, weights: torch.Tensor) -> Any:
    """The same numbers `(rows, tokens)`, nested, with a gradient times the weight of their row."""
    values, offsets = output.values(), output.offsets()
    more = (weights - 1).to(values.dtype).repeat_interleave(offsets.diff())
    return torch.nested.nested_tensor_from_jagged(values + more * (values - values.detach()), offsets=offsets)
