"""A batch whose records were lost with their process is put back into the queue as it was."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import transfer_queue

from turnsmith.trainer.verl.recovery import keep_until_handed_over


class Store(dict[str, tuple[dict[str, Any], Any]]):
    """TransferQueue: the tag and the fields of each key."""

    def kv_batch_get(self, keys: list[str], partition_id: str) -> list[Any]:
        return [self[key][1] for key in keys]

    def kv_batch_put(self, keys: list[str], partition_id: str, tags: list[Any], fields: Any = None) -> None:
        for place, key in enumerate(keys):
            self[key] = (tags[place], fields[place] if fields else None)


@pytest.mark.parametrize("has_prompts", [False, True])
def test_what_the_groups_of_a_batch_start_from_is_put_back_too(
    has_prompts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store({uid: ({}, f"start {uid}" if has_prompts else None) for uid in ("a", "b")})
    before = {uid: fields for uid, (_, fields) in store.items()}
    for name in ("kv_batch_get", "kv_batch_put"):
        monkeypatch.setattr(transfer_queue, name, getattr(store, name))

    def materialize(partition_id: str, uids: list[str], snapshot: dict[str, Any]) -> Any:
        for uid in uids:
            del store[uid]  # as verl does
        return SimpleNamespace(keys=[f"{uid}_0_0" for uid in uids])

    def sample(global_steps: int, partition_id: str, batch_size: int) -> Any:
        return buffer._materialize_batch(partition_id, ["a", "b"], {}), {}

    buffer = SimpleNamespace(
        sample=sample, _materialize_batch=materialize, prompt_global_steps={"train": {"a": 3, "b": 4}}
    )
    finished, lost = iter([False, True]), list[dict[str, Any]]()
    keep_until_handed_over(
        buffer, lambda groups: next(finished), lambda: lost.append(dict(store)), has_prompts=has_prompts
    )
    batch, _ = buffer.sample(global_steps=4, partition_id="train", batch_size=2)
    assert batch.keys == ["a_0_0", "b_0_0"]
    assert [{uid: fields for uid, (_, fields) in held.items()} for held in lost] == [before]
    assert [tag["global_steps"] for tag, _ in lost[0].values()] == [3, 4]
