"""No group is trained on later than `training.max_staleness` allows, in whatever order groups end."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.trainer.episode_queue import Queue, replace_queue
from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync

from turnsmith.trainer.verl.replay_buffer import AsyncEpisodeReplayBuffer

GROUPS = 4


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    return replace_queue(monkeypatch)


class Buffer(AsyncEpisodeReplayBuffer):
    """Ours; a group ends whenever it would wait, and a batch is taken without its tensors."""

    def __init__(self, run: Run, **settings: Any) -> None:
        super().__init__(**settings)
        self.run = run

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        self.run.end_one()
        return last_debug_time

    def _materialize_batch(self, partition_id: str, selected_prompt_uids: list[str], partition_snapshot: Any) -> Any:
        return self.run.take(selected_prompt_uids)


class Unbounded(Buffer):
    """With verl's own rule."""

    _has_enough_samples = ReplayBufferAsync._has_enough_samples


@dataclass
class Run:
    """verl's replay buffer and loop, with groups that end in a random order while the buffer waits."""

    queue: Queue
    limit: int
    updates: int = 1
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
        self.buffer: Any = (Buffer if self.bounded else Unbounded)(
            self,
            trainer_mode="separate_async",
            trainer_config={},
            max_off_policy_threshold=self.limit + 1,
            max_off_policy_strategy="wait",
            sampler_kwargs={},
            on_poll=lambda: None,
            collect_records=lambda groups: True,
            replace_lost=lambda: None,
            groups_per_step=GROUPS,
            replaces=False,
            filters=False,
            dispatch=self.dispatch,
            updates_left=lambda: self.updates - 1 - self.update,
            max_staleness=self.limit,
        )

    def dispatch(self, groups: int) -> None:
        for _ in range(groups):
            self.number += 1
            name = f"{'slow' if self.draw.random() < self.slow else 'fast'}{self.number:04d}"
            self.queue[name] = {"is_prompt": True, "status": "running", "global_steps": self.step}

    def take(self, uids: list[str]) -> Any:
        self.late += [self.step - self.queue.pop(uid)["global_steps"] for uid in uids]
        return SimpleNamespace(keys=uids)

    def end_one(self) -> None:
        running = sorted(name for name, tag in self.queue.items() if tag["status"] == "running")
        assert running, "it waits for nothing"
        fast = [name for name in running if name.startswith("fast")]
        self.queue[self.draw.choice(fast or running)]["status"] = "finished"

    def train(self, steps: int) -> None:
        self.dispatch(self.limit * GROUPS)
        for self.step in range(1, steps + 1):
            self.dispatch(GROUPS)
            for self.update in range(self.updates):  # noqa: B020
                self.buffer.sample(self.step, "train", GROUPS // self.updates)
                # Between two updates, some groups end as well.
                for _ in range(self.draw.randrange(3)):
                    if any(tag["status"] == "running" for tag in self.queue.values()):
                        self.end_one()


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
