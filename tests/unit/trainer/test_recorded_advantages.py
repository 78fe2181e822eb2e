"""What the actor trains on is recorded at a cost that is linear in the episodes."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transfer_queue

from turnsmith.records.advantages import StepAdvantages
from turnsmith.trainer.verl.estimators import add_advantages, add_trainer_log_probs

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


def test_the_trainers_log_probs_are_kept_of_sampled_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, numbers = batch_of(1)
    mask = torch.nested.nested_tensor_from_jagged(torch.ones(2 * TOKENS, dtype=torch.int64), numbers.offsets())
    mask.values()[3] = 0  # of the environment
    fields = {"old_log_probs": -numbers.to(torch.bfloat16), "response_mask": mask}
    monkeypatch.setattr(transfer_queue, "kv_batch_get", lambda **asked: fields)
    recorded = StepAdvantages()
    add_trainer_log_probs(recorded, batch)
    assert list(recorded.trainer_log_probs) == ["00000000-0"]
    assert recorded.trainer_log_probs["00000000-0"].tolist() == [0, -1, -2, 0, *range(-4, -10, -1)]  # type: ignore[attr-defined]


def test_ten_times_the_episodes_cost_about_ten_times_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds(100, monkeypatch)  # whatever is imported on first use
    few = min(seconds(200, monkeypatch) for _ in range(3))
    assert seconds(2000, monkeypatch) < 40 * few
