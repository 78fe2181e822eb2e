"""No group is trained on later than `training.max_staleness` allows, in whatever order groups end."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.unit.trainer.episode_queue import Queue, replace_queue
from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync

from turnsmith.trainer.verl.staleness import bound_staleness, note_dropped

GROUPS = 4


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    return replace_queue(monkeypatch)


@dataclass
class Run:
    """verl's replay buffer and loop, with groups that end in a random order while the buffer waits."""

    queue: Queue
    limit: int
    updates: int = 1
    stragglers: str = "wait"
    bounded: bool = True
    draw: random.Random = field(default_factory=lambda: random.Random(0))
    slow: float = 0.0
    """Share of groups that end only when nothing else is under way."""
    step: int = 1
    update: int = 0
    number: int = 0
    late: list[int] = field(default_factory=list[int])
    """By how many steps each group that was trained on was late."""

    def __post_init__(self) -> None:
        self.buffer: Any = ReplayBufferAsync(
            trainer_mode="separate_async",
            trainer_config={},  # type: ignore[arg-type]
            max_off_policy_threshold=self.limit + 1,
            max_off_policy_strategy=self.stragglers,
            sampler_kwargs={},  # type: ignore[arg-type]
            refill_fn=self.dispatch,
        )
        self.buffer._wait_for_next_poll = self.end_one
        self.buffer._materialize_batch = self.take
        self.dropped = note_dropped(self.buffer)
        if self.bounded and self.stragglers == "wait":
            bound_staleness(self.buffer, self.limit, GROUPS, lambda: self.updates - 1 - self.update)

    def dispatch(self, groups: int) -> None:
        for _ in range(groups):
            self.number += 1
            name = f"{'slow' if self.draw.random() < self.slow else 'fast'}{self.number:04d}"
            self.queue[name] = {"is_prompt": True, "status": "running", "global_steps": self.step}

    def take(self, partition_id: str, uids: list[str], snapshot: dict[str, Any]) -> None:
        self.late += [self.step - self.queue.pop(uid)["global_steps"] for uid in uids]

    def end_one(self, partition_id: str, last_debug_time: float) -> float:
        running = sorted(name for name, tag in self.queue.items() if tag["status"] == "running")
        assert running, "it waits for nothing"
        fast = [name for name in running if name.startswith("fast")]
        self.queue[self.draw.choice(fast or running)]["status"] = "finished"
        return last_debug_time

    def train(self, steps: int) -> None:
        self.dispatch(self.limit * GROUPS)
        for self.step in range(1, steps + 1):
            self.dispatch(GROUPS)
            for self.update in range(self.updates):  # noqa: B020
                self.buffer.sample(self.step, "train", GROUPS // self.updates)
                # Between two updates, some groups end as well.
                for _ in range(self.draw.randrange(3)):
                    if any(tag["status"] == "running" for tag in self.queue.values()):
                        self.end_one("train", 0.0)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("updates", [1, 2, 4])
@pytest.mark.parametrize("limit", [1, 2, 3])
def test_the_limit_is_reached_and_kept(limit: int, updates: int, seed: int, queue: Queue) -> None:
    run = Run(queue, limit, updates, draw=random.Random(seed), slow=0.2)
    run.train(20)
    assert max(run.late) == limit
    assert len(run.late) == 20 * GROUPS
    assert len(queue) == limit * GROUPS


def test_verls_own_rule_lets_groups_get_too_old(queue: Queue) -> None:
    run = Run(queue, 2, bounded=False, slow=0.5)
    run.train(20)
    assert max(run.late) > 2


@pytest.mark.parametrize("seed", range(10))
def test_stragglers_that_are_dropped_are_named_and_replaced(seed: int, queue: Queue) -> None:
    run = Run(queue, 2, 2, "drop", draw=random.Random(seed), slow=0.3)
    run.train(20)
    assert max(run.late) <= 2
    assert len(run.late) == 20 * GROUPS
    assert any(name.startswith("slow") for name in run.dropped)
    assert run.number == len(run.late) + len(run.dropped) + len(queue)
