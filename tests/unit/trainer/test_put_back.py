"""A batch whose records were lost with their process is put back into the queue as it was."""

from __future__ import annotations

from typing import Any

import pytest
import transfer_queue

from turnsmith.trainer.verl.replay_buffer import AsyncEpisodeReplayBuffer, EpisodeReplayBuffer


class Store(dict[str, tuple[dict[str, Any], Any]]):
    """TransferQueue: the tag and the fields of each key."""

    def kv_list(self) -> dict[str, dict[str, Any]]:
        return {"train": {key: tag for key, (tag, _) in self.items()}}

    def kv_clear(self, keys: list[str], partition_id: str) -> None:
        for key in keys:
            del self[key]

    def kv_batch_get(self, keys: list[str], partition_id: str) -> list[Any]:
        return [self[key][1] for key in keys]

    def kv_batch_put(self, keys: list[str], partition_id: str, tags: list[Any], fields: Any = None) -> None:
        for place, key in enumerate(keys):
            self[key] = (tags[place], fields[place] if fields else None)


@pytest.mark.parametrize(
    ("kind", "more"),
    [(EpisodeReplayBuffer, {}), (AsyncEpisodeReplayBuffer, {"updates_left": lambda: 0, "max_staleness": 1})],
)
def test_what_the_groups_of_a_batch_start_from_is_put_back_too(
    kind: type[EpisodeReplayBuffer], more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store({key: ({}, None) for key in ("a_0_0", "b_0_0")})
    for uid, begun in (("a", 3), ("b", 4)):
        tag = {"is_prompt": True, "status": "finished", "global_steps": begun}
        store[uid] = (tag, f"start {uid}" if kind.has_prompts else None)
    before = dict(store)
    for name in ("kv_list", "kv_clear", "kv_batch_get", "kv_batch_put"):
        monkeypatch.setattr(transfer_queue, name, getattr(store, name))
    finished, lost = iter([False, True]), list[dict[str, Any]]()
    buffer = kind(
        trainer_mode="sync",
        trainer_config={},
        max_off_policy_threshold=2,
        max_off_policy_strategy="wait",
        sampler_kwargs={},
        on_poll=lambda: None,
        collect_records=lambda groups: next(finished),
        replace_lost=lambda: lost.append(dict(store)),
        groups_per_step=2,
        replaces=False,
        filters=False,
        dispatch=lambda number: None,
        **more,
    )
    batch, _ = buffer.sample(global_steps=4, partition_id="train", batch_size=2)
    assert sorted(batch.keys) == ["a_0_0", "b_0_0"]
    assert lost == [before]
