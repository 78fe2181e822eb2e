"""Advantages inside verl's trainer: what the estimator needs besides verl's own fields, and a record of the result."""

from __future__ import annotations

from typing import Any

import transfer_queue

from turnsmith.records.advantages import StepAdvantages, write_advantages
from turnsmith.rollout.episode_groups import episode_name
from turnsmith.trainer.verl.agent_loop import ANCHORS


def extra_fields(batch: Any, *, critic: bool, anchors: bool) -> dict[str, Any]:
    """`values` and `anchors` of a batch, padded like the fields that verl itself hands to an estimator."""
    wanted = {"values": "values"} if critic else {}
    wanted |= {"anchors": ANCHORS} if anchors else {}
    if not wanted:
        return {}
    data = _fields(batch, [*wanted.values(), "response_mask"]).to_padded_tensor()
    # Rows that verl adds as padding keep the anchors of the row they were made from, which may be longer than any row.
    width = data["response_mask"].shape[1]
    return {ours: data[theirs][:, :width] for ours, theirs in wanted.items()}


def record_advantages(batch: Any, run_dir: str, step: int, *, critic: bool, kl_in_reward: bool) -> None:
    """Write what the actor is about to train on, as it stands where the actor will read it, to the run folder."""
    names = {"advantages": "advantages"}
    names |= {"values": "values"} if critic else {}
    names |= {"rewards": "token_level_rewards"} if kl_in_reward else {}
    data = _fields(batch, list(names.values()))
    trained = StepAdvantages()
    for row, (key, tag) in enumerate(zip(batch.keys, batch.tags, strict=True)):
        if tag.get("is_padding", False):
            continue
        uid, session, _ = key.rsplit("_", 2)
        for ours, theirs in names.items():
            getattr(trained, ours)[episode_name(uid, session)] = data[theirs][row].numpy()
    write_advantages(run_dir, step, trained)


def _fields(batch: Any, names: list[str]) -> Any:
    return transfer_queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=names)
