"""A discrete-event model of the three schedules; `benchmarks/schedules.py` compares it with runs.

An episode is a list of turns. Each turn waits for a free slot of the rollout engine, holds the slot while it is
generated, and then waits for its environment. The trainer takes groups by verl's rules (`ReplayBufferAsync` with the
strategy `wait`) and pauses generation when the schedule does. Two clocks keep that simple: generation ends by the
engine's clock, which stands still in a pause and runs slower the more turns share the engine, and environments end by
the clock on the wall.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Turn(NamedTuple):
    """How long one turn takes."""

    generate: float
    """Time by the engine's clock: seconds, or tokens if the engine has a speed."""
    environment: float
    alone: float = 0.0
    """Seconds in which the engine works on this turn alone, such as its prefill, and all others wait."""


class StepCosts(NamedTuple):
    """How long the trainer takes for a step, in seconds."""

    hand_over: float
    """Time between the end of the last episode and the beginning of the update."""
    update: float
    sync: float
    rest: float
    """Time after the new weights are in the engine, for metrics and checkpoints."""


@dataclass(frozen=True)
class Workload:
    """Draws groups and step costs."""

    group: Callable[[random.Random], Sequence[Sequence[Turn]]]
    """The turns of each episode of a group."""
    costs: Callable[[random.Random, str], StepCosts]
    """The costs of a step with a schedule."""


@dataclass(slots=True)
class _Group:
    dispatched: int
    left: int
    version: int | None = None
    """The version of the weights that generated its first turn."""


@dataclass
class Simulated:
    """What a simulated run measured."""

    step_seconds: list[float] = field(default_factory=list[float])
    staleness: list[Counter[int]] = field(default_factory=list[Counter[int]])
    """The groups of each step, counted by how many steps they were behind the weights that they updated."""
    slot_use: float = 0.0
    """Share of the slots' time in which a turn was generated."""


class RolloutModel:
    """The engine and the environments."""

    def __init__(self, slots: int, speed: Callable[[int], float] = lambda turns: 1.0) -> None:
        self.now = 0.0
        self.version = 0
        self.done: list[_Group] = []
        self.in_flight: Counter[int] = Counter()
        """Unfinished groups, by the step that dispatched them."""
        self.busy_seconds = 0.0
        self._slots = slots
        self._speed = speed
        self._engine = 0.0
        self._alone = 0.0
        self._is_paused = False
        self._generating: list[tuple[float, int, _Group, deque[Turn]]] = []
        self._acting: list[tuple[float, int, _Group, deque[Turn]]] = []
        self._queue: deque[tuple[_Group, deque[Turn]]] = deque()
        self._number = itertools.count()

    def dispatch(self, step: int, episodes: Sequence[Sequence[Turn]]) -> None:
        """Start the episodes of a group."""
        group = _Group(step, len(episodes))
        self.in_flight[step] += 1
        for turns in episodes:
            self._queue.append((group, deque(turns)))
        self._fill()

    def pause(self, paused: bool) -> None:
        """Stop or resume generation; environments go on."""
        self._is_paused = paused
        self._fill()

    def run_for(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while self._next_time() <= end:
            self._next()
        self._pass_time(end)

    def run_until(self, holds: Callable[[], bool]) -> None:
        """Let time pass until `holds` returns True; it is called whenever a group has ended."""
        known = -1
        while known == len(self.done) or not holds():
            known = len(self.done)
            self._next()

    def _next_time(self) -> float:
        generated = self._generating and not self._is_paused
        first = float("inf")
        if generated:
            left = (self._generating[0][0] - self._engine) / self._speed(len(self._generating))
            first = self.now + self._alone + max(0.0, left)
        return min(first, self._acting[0][0] if self._acting else float("inf"))

    def _next(self) -> None:
        time = self._next_time()
        self._pass_time(time)
        if self._acting and self._acting[0][0] <= time:
            _, _, group, turns = heapq.heappop(self._acting)
            if turns:
                self._queue.append((group, turns))
            else:
                self._end(group)
        else:
            _, number, group, turns = heapq.heappop(self._generating)
            heapq.heappush(self._acting, (time + turns.popleft().environment, number, group, turns))
        if self._queue:
            self._fill()

    def _fill(self) -> None:
        while self._queue and len(self._generating) < self._slots and not self._is_paused:
            group, turns = self._queue.popleft()
            group.version = self.version if group.version is None else group.version
            self._alone += turns[0].alone
            heapq.heappush(self._generating, (self._engine + turns[0].generate, next(self._number), group, turns))

    def _pass_time(self, to: float) -> None:
        if not self._is_paused:
            alone = min(self._alone, to - self.now)
            self._alone -= alone
            self._engine += (to - self.now - alone) * self._speed(max(1, len(self._generating)))
            self.busy_seconds += len(self._generating) * (to - self.now)
        self.now = max(self.now, to)

    def _end(self, group: _Group) -> None:
        group.left -= 1
        if not group.left:
            self.in_flight[group.dispatched] -= 1
            self.done.append(group)


def simulate(
    schedule: str,
    work: Workload,
    *,
    groups: int,
    steps: int,
    slots: int,
    max_staleness: int = 1,
    ahead: int = 1,
    warm_up: int = 0,
    seed: int = 0,
    speed: Callable[[int], float] = lambda turns: 1.0,
) -> Simulated:
    """Run a schedule for some steps of `groups` groups each, with `ahead` batches dispatched in advance.

    What happened in the first `warm_up` steps is not part of the result. `speed` maps the number of turns that are
    generated at once to the speed of the engine's clock.
    """
    chance, rollouts, found = random.Random(seed), RolloutModel(slots, speed), Simulated()
    is_sync, measured_from = schedule == "sync", 0.0

    def dispatch(step: int) -> None:
        for _ in range(groups):
            rollouts.dispatch(step, work.group(chance))

    def has_batch(step: int) -> bool:
        # verl waits for every group that would get too old; the schedule `sync` waits for all groups.
        oldest = step if is_sync else step - max_staleness
        if len(rollouts.done) < groups:
            return False
        return not any(count for begun, count in rollouts.in_flight.items() if begun <= oldest)

    for _ in range(0 if is_sync else ahead):
        dispatch(0)
    for step in range(1, steps + 1):
        if step == warm_up + 1:
            found, rollouts.busy_seconds, measured_from = Simulated(), 0.0, rollouts.now
        began, costs = rollouts.now, work.costs(chance, schedule)
        dispatch(step)
        rollouts.run_until(lambda step=step: has_batch(step))
        rollouts.run_for(costs.hand_over)
        rollouts.done.sort(key=lambda group: group.dispatched)
        batch, rollouts.done = rollouts.done[:groups], rollouts.done[groups:]
        found.staleness.append(Counter(step - 1 - (group.version or 0) for group in batch))
        rollouts.pause(schedule != "separate_async")
        rollouts.run_for(costs.update)
        rollouts.pause(True)
        rollouts.run_for(costs.sync)
        rollouts.version = step
        rollouts.pause(False)
        rollouts.run_for(costs.rest)
        found.step_seconds.append(rollouts.now - began)
    found.slot_use = rollouts.busy_seconds / (slots * (rollouts.now - measured_from))
    return found
