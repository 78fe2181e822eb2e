"""TransferQueue without its process, and waiting in tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import transfer_queue


class Queue(dict[str, dict[str, Any]]):
    """The tags in TransferQueue, by key."""

    def kv_list(self, partition_id: str = "train") -> dict[str, dict[str, Any]]:
        return {partition_id: dict(self)} if self else {}

    def kv_clear(self, keys: list[str], partition_id: str) -> None:
        for key in keys:
            del self[key]

    def kv_batch_put(self, keys: list[str], partition_id: str, tags: list[dict[str, Any]]) -> None:
        for key, tag in zip(keys, tags, strict=True):
            self[key] = {**self.get(key, {}), **tag}

    async def async_kv_put(self, key: str, partition_id: str, tag: dict[str, Any]) -> None:
        self.kv_batch_put([key], partition_id, [tag])

    async def async_kv_batch_put(self, keys: Any, fields: Any, tags: Any, partition_id: str) -> None:
        self.kv_batch_put(keys, partition_id, tags)

    def init(self) -> None:
        """There is nothing to connect to."""


def replace_queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    """Put a queue in place of TransferQueue, whose functions would start Ray."""
    tags = Queue()
    for name in ("kv_list", "kv_clear", "kv_batch_put", "async_kv_put", "async_kv_batch_put", "init"):
        monkeypatch.setattr(transfer_queue, name, getattr(tags, name))
    return tags


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)
