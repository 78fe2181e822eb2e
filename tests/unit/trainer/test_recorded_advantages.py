"""What the actor trains on is recorded at a cost that is linear in the episodes."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transfer_queue

from turnsmith.records.advantages import StepAdvantages
from turnsmith.trainer.verl.estimators import add_advantages

TOKENS = 10


def batch_of(episodes: int) -> tuple[Any, torch.Tensor]:
    """A batch of verl's with a row of padding, and its advantages."""
    keys = [f"{row // 8:08d}_{row % 8}_0" for row in range(episodes)] + ["pad_0_0"]
    tags: list[dict[str, Any]] = [{} for _ in range(episodes)] + [{"is_padding": True}]
    offsets = torch.arange(0, (episodes + 1) * TOKENS + 1, TOKENS)
    numbers = torch.nested.nested_tensor_from_jagged(torch.arange(float(offsets[-1])), offsets)
    return SimpleNamespace(keys=keys, tags=tags, partition_id="train"), numbers


def seconds(episodes: int, monkeypatch: pytest.MonkeyPatch, recorded: StepAdvantages | None = None) -> float:
    batch, numbers = batch_of(episodes)
    monkeypatch.setattr(transfer_queue, "kv_batch_get", lambda **asked: {"advantages": numbers})
    began = time.process_time()
    add_advantages(recorded or StepAdvantages(), batch, critic=False, kl_in_reward=False)
    return time.process_time() - began


def test_each_episode_gets_its_own_numbers_and_padding_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = StepAdvantages({"another-0": [1.0]})  # of an update of the same step
    seconds(9, monkeypatch, earlier)
    recorded = earlier.advantages
    assert len(recorded) == 10
    assert list(recorded["00000000-0"]) == [float(number) for number in range(TOKENS)]
    assert list(recorded["00000001-0"]) == [float(8 * TOKENS + number) for number in range(TOKENS)]


def test_ten_times_the_episodes_cost_about_ten_times_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds(100, monkeypatch)  # whatever is imported on first use
    few = min(seconds(200, monkeypatch) for _ in range(3))
    assert seconds(2000, monkeypatch) < 40 * few
