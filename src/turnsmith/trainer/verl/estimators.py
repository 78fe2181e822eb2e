"""Our advantage estimators inside verl's trainer, and a record of what they computed."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import transfer_queue
from verl.trainer.ppo.core_algos import register_adv_est

from turnsmith.records.advantages import StepAdvantages
from turnsmith.rollout.episode_groups import episode_name
from turnsmith.trainer.advantages import AdvantageEstimator, AdvantageInputs

ANCHORS = "turn_anchors"
"""The field of verl's batch with the observation that each turn began from, where `training.credit` needs it."""
_extra: dict[str, Any] = {}


def register_estimator(name: str, estimator: AdvantageEstimator, credit: str) -> None:
    """Register the run's estimator under the name that verl's config has for it."""

    def compute(token_level_rewards: Any, response_mask: Any, config: Any, index: Any, **unused: Any) -> Any:
        inputs = AdvantageInputs(token_level_rewards, response_mask, index, config.gamma, config.lam)
        return estimator.compute(credit, replace(inputs, **_extra))

    register_adv_est(name)(compute)


@contextmanager
def extra_inputs(**tensors: Any) -> Generator[None]:
    """Pass `values`, `anchors` or `mask` to the estimator that verl calls in this block; its registry has no way to.

    verl's rollout rejection sets tokens of `response_mask` to 0 before it calls the estimator. Turns would then end
    where a token was rejected, so the estimator gets the `mask` of before. The loss leaves the rejected tokens out.
    """
    _extra.update(tensors)
    try:
        yield
    finally:
        _extra.clear()


def extra_fields(batch: Any, *, critic: bool, anchors: bool, mask: bool) -> dict[str, Any]:
    """`values`, `anchors` and `mask` of a batch, padded like the fields that verl itself passes to an estimator."""
    wanted = {"values": "values"} if critic else {}
    wanted |= {"anchors": ANCHORS} if anchors else {}
    wanted |= {"mask": "response_mask"} if mask else {}
    if not wanted:
        return {}
    data = _read_fields(batch, list({*wanted.values(), "response_mask"})).to_padded_tensor()
    # Rows that verl adds as padding keep the anchors of the row they were made from, which may be longer than any row.
    width = data["response_mask"].shape[1]
    return {ours: data[theirs][:, :width] for ours, theirs in wanted.items()}


def add_advantages(recorded: StepAdvantages, batch: Any, *, critic: bool, kl_in_reward: bool) -> None:
    """Add what the actor is about to train on, read back from where the actor will read it, to a step's record."""
    names = {"advantages": "advantages"}
    names |= {"values": "values"} if critic else {}
    names |= {"rewards": "token_level_rewards"} if kl_in_reward else {}
    data = _read_fields(batch, list(names.values()))
    # By unbind, and not row by row: to take one row of a nested tensor, torch unbinds all of them.
    rows = {ours: data[theirs].unbind() for ours, theirs in names.items()}
    for row, (key, tag) in enumerate(zip(batch.keys, batch.tags, strict=True)):
        if tag.get("is_padding", False):
            continue
        uid, session, _ = key.rsplit("_", 2)
        for ours, numbers in rows.items():
            getattr(recorded, ours)[episode_name(uid, session)] = numbers[row].numpy()


def _read_fields(batch: Any, names: list[str]) -> Any:
    return transfer_queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=names)
