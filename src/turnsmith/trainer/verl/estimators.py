"""Our advantage estimators inside verl's trainer, and a record of what they computed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import transfer_queue
from tensordict import TensorDict
from verl.trainer.ppo.core_algos import register_adv_est

from turnsmith.records.advantages import StepAdvantages
from turnsmith.rollout.episode_groups import episode_name
from turnsmith.trainer.advantages import AdvantageEstimator, AdvantageInputs
from turnsmith.trainer.row_weights import counts_episodes, row_weights
from turnsmith.trainer.segments import EpisodeRows
from turnsmith.trainer.verl.losses import ROW_WEIGHTS

ANCHORS = "turn_anchors"
"""The field of verl's batch with the observation that each turn began from, where `training.credit` needs it."""
PLACES = "episode_places"
"""The field with the place of each token in the row of its episode, where agents play the episodes."""
_extra: dict[str, Any] = {}


def register_estimator(name: str, estimator: AdvantageEstimator, credit: str) -> None:
    """Register the run's estimator under the name that verl's config has for it."""

    def compute(token_level_rewards: Any, response_mask: Any, config: Any, index: Any, **unused: Any) -> Any:
        inputs = AdvantageInputs(token_level_rewards, response_mask, index, config.gamma, config.lam)
        extra = dict(_extra)
        rows = extra.pop("rows", None)
        return estimator.compute(credit, replace(inputs, **extra), rows)

    register_adv_est(name)(compute)


@contextmanager
def extra_inputs(**tensors: Any) -> Generator[None]:
    """Pass `values`, `anchors`, `mask` or `rows` to the estimator that verl calls in this block; its registry can not.

    verl's rollout rejection sets tokens of `response_mask` to 0 before it calls the estimator. Turns would then end
    where a token was rejected, so the estimator gets the `mask` of before. The loss leaves the rejected tokens out.
    """
    _extra.update(tensors)
    try:
        yield
    finally:
        _extra.clear()


def extra_fields(batch: Any, *, critic: bool, anchors: bool, mask: bool) -> dict[str, Any]:
    """`values`, `anchors` and `mask` of a batch, padded like the fields that verl itself passes to an estimator.

    And `rows`, if an episode has several rows in the batch.
    """
    wanted = {"values": "values"} if critic else {}
    wanted |= {"anchors": ANCHORS} if anchors else {}
    wanted |= {"mask": "response_mask"} if mask else {}
    episodes = [key.rpartition("_")[0] for key in batch.keys]
    wanted |= {"rows": PLACES} if len(set(episodes)) < len(episodes) else {}
    if not wanted:
        return {}
    data = _read_fields(batch, list({*wanted.values(), "response_mask"})).to_padded_tensor()
    # Rows that verl adds as padding keep the anchors of the row they were made from, which may be longer than any row.
    width = data["response_mask"].shape[1]
    fields = {ours: data[theirs][:, :width] for ours, theirs in wanted.items()}
    if "rows" in fields:
        fields["rows"] = EpisodeRows.of(episodes, fields["rows"])
    return fields


def add_advantages(recorded: StepAdvantages, batch: Any, *, critic: bool, kl_in_reward: bool) -> None:
    """Add what the actor is about to train on, read back from where the actor will read it, to a step's record."""
    names = {"advantages": "advantages"}
    names |= {"values": "values"} if critic else {}
    names |= {"rewards": "token_level_rewards"} if kl_in_reward else {}
    data = _read_fields(batch, list(names.values()))
    # By unbind, and not row by row: to take one row of a nested tensor, torch unbinds all of them.
    rows = {ours: data[theirs].unbind() for ours, theirs in names.items()}
    segments = defaultdict[str, list[tuple[int, int]]](list)
    for row, (key, tag) in enumerate(zip(batch.keys, batch.tags, strict=True)):
        if not tag.get("is_padding", False):
            uid, session, segment = key.rsplit("_", 2)
            segments[episode_name(uid, session)].append((int(segment), row))
    for name, parts in segments.items():
        for ours, numbers in rows.items():
            getattr(recorded, ours)[name] = np.concatenate([numbers[row].numpy() for _, row in sorted(parts)])


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
    # What it returns names the new field: the ranks read only fields that their batch names.
    return transfer_queue.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)


def _read_fields(batch: Any, names: list[str]) -> Any:
    return transfer_queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=names)
