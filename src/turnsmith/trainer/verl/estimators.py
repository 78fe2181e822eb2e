"""Our advantage estimators and losses inside verl's trainer, and a record of what they computed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
import transfer_queue
from tensordict import TensorDict
from verl.trainer.ppo.core_algos import register_adv_est
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.utils.losses import ppo_loss, value_loss

from turnsmith.records.advantages import StepAdvantages
from turnsmith.rollout.episode_groups import episode_name
from turnsmith.trainer.advantages import AdvantageEstimator, AdvantageInputs
from turnsmith.trainer.segments import EpisodeRows, counts_episodes, row_weights

ROW_WEIGHTS = "row_weights"
"""The field of verl's batch with the `row_weights` of each token; only for means over episodes."""


def count_episodes(config: Any, actor: Any, critic: Any | None) -> None:
    """Let the ranks of verl's worker groups use losses that read `ROW_WEIGHTS`, if an aggregation needs them.

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


ANCHORS = "turn_anchors"
"""The field of verl's batch with the observation that each turn began from, where `training.credit` needs it."""
PLACES = "episode_places"
"""The field with the place of each token in the row of its episode, where agents play the episodes."""


class RunEstimator:
    """The run's estimator, registered under the name that verl's config has for it.

    verl's registry cannot pass it all inputs, so it reads the others from the batch.
    """

    def __init__(self, name: str, estimator: AdvantageEstimator, credit: str) -> None:
        self._estimator, self._credit = estimator, credit
        self._extra: dict[str, Any] = {}
        self._rows: EpisodeRows | None = None
        register_adv_est(name)(self.compute)

    def compute(self, token_level_rewards: Any, response_mask: Any, config: Any, index: Any, **unused: Any) -> Any:
        """Advantages and returns; verl calls this."""
        inputs = AdvantageInputs(token_level_rewards, response_mask, index, config.gamma, config.lam)
        return self._estimator.compute(self._credit, replace(inputs, **self._extra), self._rows)

    @contextmanager
    def reading(self, batch: Any, *, rejects: bool) -> Generator[None]:
        """Let `compute` read values, anchors, mask and rows in this batch, padded like what verl passes.

        Args:
            batch: The batch whose advantages verl computes in this block.
            rejects: Whether verl's rollout rejection is on. It sets tokens of `response_mask` to 0 before it calls the
                estimator. Turns would then end where a token was rejected, so `compute` gets the earlier mask. The loss
                leaves the rejected tokens out.
        """
        self._read(batch, rejects=rejects)
        try:
            yield
        finally:
            self._extra, self._rows = {}, None

    def _read(self, batch: Any, *, rejects: bool) -> None:
        wanted = {"values": "values"} if self._estimator.needs_critic else {}
        wanted |= {"anchors": ANCHORS} if self._credit == "anchored" else {}
        wanted |= {"mask": "response_mask"} if rejects else {}
        episodes = [key.rpartition("_")[0] for key in batch.keys]
        wanted |= {"rows": PLACES} if len(set(episodes)) < len(episodes) else {}
        if not wanted:
            return
        data = _read_fields(batch, list({*wanted.values(), "response_mask"})).to_padded_tensor()
        # Padding rows of verl keep the anchors of the row that they copy, which may be longer than any row.
        width = data["response_mask"].shape[1]
        self._extra = {ours: data[theirs][:, :width] for ours, theirs in wanted.items()}
        if "rows" in self._extra:
            self._rows = EpisodeRows.of(episodes, self._extra.pop("rows"))


def add_advantages(recorded: StepAdvantages, batch: Any, *, critic: bool, kl_in_reward: bool) -> None:
    """Add the advantages, as the actor will read them, to a step's record."""
    names = {"advantages": "advantages"}
    names |= {"values": "values"} if critic else {}
    names |= {"rewards": "token_level_rewards"} if kl_in_reward else {}
    data = _read_fields(batch, list(names.values()))
    # Unbound at once, because torch unbinds all rows of a nested tensor to take one.
    for ours, theirs in names.items():
        getattr(recorded, ours).update(_by_episode(batch, data[theirs].unbind()))


def add_trainer_log_probs(recorded: StepAdvantages, batch: Any) -> None:
    """Add the log-probs that the trainer has just computed of the sampled tokens to a step's record."""
    data = _read_fields(batch, ["old_log_probs", "response_mask"])
    rows = zip(data["old_log_probs"].unbind(), data["response_mask"].unbind(), strict=True)
    recorded.trainer_log_probs.update(_by_episode(batch, [numbers.float() * mask for numbers, mask in rows]))


def _by_episode(batch: Any, rows: Sequence[Any]) -> dict[str, Any]:
    """The numbers of each episode, without padding; an agent's episode may have several rows."""
    segments = defaultdict[str, list[tuple[int, int]]](list)
    for row, (key, tag) in enumerate(zip(batch.keys, batch.tags, strict=True)):
        if not tag.get("is_padding", False):
            uid, session, segment = key.rsplit("_", 2)
            segments[episode_name(uid, session)].append((int(segment), row))
    return {name: np.concatenate([rows[row].numpy() for _, row in sorted(parts)]) for name, parts in segments.items()}


def with_row_weights(batch: Any, aggregation: str) -> Any:
    """The batch with the weights of its rows for `weighted_loss`, if its losses are means over episodes."""
    if not counts_episodes(aggregation):
        return batch
    mask = _read_fields(batch, ["response_mask"])["response_mask"]
    rows = mask.unbind()
    episodes = [key.rpartition("_")[0] for key in batch.keys]
    weights = row_weights(episodes, [int(row.count_nonzero()) for row in rows], aggregation)
    values = [torch.full(row.shape, weight, dtype=torch.float32) for row, weight in zip(rows, weights, strict=True)]
    fields = TensorDict({ROW_WEIGHTS: torch.nested.as_nested_tensor(values, layout=torch.jagged)}, [len(values)])
    # The result names the new field, because the ranks read only fields that their batch names.
    return transfer_queue.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)


def _read_fields(batch: Any, names: list[str]) -> Any:
    return transfer_queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=names)
