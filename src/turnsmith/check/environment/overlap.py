"""Do episodes go differently beside others than alone? Their calls are forced to overlap here.

Episodes are played one after another, and their actions are repeated with each call between two calls of the others.
Where environments have worker processes, the actions are repeated there in two more ways. Each line of a call runs
between two lines of the other calls; a process that runs traced code may crash, so it is not the user's. And each
episode runs in a new process.
"""

from __future__ import annotations

import asyncio
import copy
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from turnsmith.check.environment.lockstep import Lockstep
from turnsmith.check.environment.scripted import Replay, first_difference
from turnsmith.check.environment.subject import Subject
from turnsmith.env.isolation.settings import OWN, PROCESSES, Isolation
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import ConfigError, EnvironmentFailure
from turnsmith.rollout.episode import EpisodeStart
from turnsmith.rollout.spec import check_isolation
from turnsmith.trajectory import Outcome, Trajectory

FIX = (
    "Keep all state in the object (`self`): no class attributes, module variables, fixed file names or ports, and no "
    "change of the working folder or of environment variables. Every episode has an object of its own."
)
_ROUNDS = 5
"""How often a difference has to appear again; otherwise it is chance."""
_ENOUGH_SECONDS = 10.0
"""After so long, two episodes in new processes are enough: each imports again what the first one imported."""
_WAIT_SECONDS = 5.0
"""How long an episode waits for its turn, and for the first turns of the others."""


@dataclass(frozen=True, slots=True)
class Disturbed:
    """An environment whose episodes disturb each other."""

    spec: EnvironmentSpec
    differing: list[tuple[Trajectory, Trajectory]]
    """Pairs of an episode played alone and the same episode played beside others."""
    is_cured: bool
    """Whether a worker process for each makes them go the same way, as far as that was tried."""
    seconds: float | None
    """Seconds that such a process adds to an episode; None if that was not measured."""

    @property
    def saw(self) -> str:
        """What was seen, in a sentence."""
        return (
            f"Episodes of {self.spec.name} change what others see if they run in one process. In the first, "
            f"{first_difference(*self.differing[0])}."
        )

    @property
    def refusal(self) -> str:
        """Why no run is possible, in a sentence; empty if each environment gets a process of its own instead."""
        if is_auto(self.spec) and self.is_cured:
            return ""
        if is_auto(self.spec):
            return "They do in processes of their own, too: they share something outside, such as a file or a port."
        return (
            f"With environment.isolation={self.spec.mode} they share one: with auto, or own_process, each gets a "
            "worker process to itself."
        )

    @property
    def cost(self) -> str:
        """What a process for each environment costs, in a sentence."""
        took = "seconds" if self.seconds is None else f"{self.seconds:.1f} s"
        most = Isolation.of(self.spec.config, OWN).workers
        return (
            f"So each gets a worker process to itself, which takes {took} to start and the memory of a Python process "
            f"with what it imports; there are at most {most} at once (environment.isolation_workers)."
        )


def is_auto(spec: EnvironmentSpec) -> bool:
    """Whether turnsmith chooses where environments run."""
    return getattr(spec.config, "isolation", "auto") == "auto"


def settled(environment: EnvironmentSpec, found: Sequence[Disturbed | None]) -> EnvironmentSpec:
    """The environment, or mix, in which those that disturb each other have a worker process each.

    Args:
        environment: The environment, or a mix.
        found: What was found for each of `environment.each()`.

    Raises:
        EnvironmentFailure: Worker processes would not help, or the settings choose something else.
    """
    for one in found:
        if one is not None and one.refusal:
            raise EnvironmentFailure(f"{one.saw} {one.refusal} {FIX} training.check=false goes on all the same.")
    return environment.in_own_processes([number for number, one in enumerate(found) if one is not None])


def disturbed_in(subject: Subject) -> list[Disturbed | None]:
    """What is known so far about each of the subject's environments."""
    return [subject.played.get((Disturbed, number)) for number in range(len(subject.environment.each()))]


async def look_for_disturbance(
    subject: Subject,
    starts: Sequence[EpisodeStart],
    played: Sequence[Trajectory],
    turns: int | None = None,
    note: Callable[[Disturbed], None] = lambda found: None,
) -> Disturbed | None:
    """Compare episodes beside others with the same actions one after another; None if they go the same way.

    Args:
        subject: Plays the episodes; not a mix.
        starts: Where they begin.
        played: The episodes.
        turns: Limit on their turns; None: that of training.
        note: Called with what was found as soon as it is known, because this may be stopped before it tries a cure.
    """
    spec, repeat = on_workers(subject.environment, 1), _Repeat(subject, starts, played, turns)
    repeat.alone = await repeat.play(spec)
    is_here = sys.platform == "linux" and "://" not in str(spec.target)
    own = on_workers(spec.in_own_processes([0]), 0) if is_here and (is_auto(spec) or spec.mode == "process") else None
    ways: list[tuple[EnvironmentSpec | None, _Order | None]] = [
        (spec, _one_by_one),
        (_held(spec, len(starts)), _all_at_once),
    ]
    ways += [(own, None)] * (spec.mode == "process")
    pairs, beside = list[tuple[Trajectory, Trajectory]](), 0.0
    for environment, order in ways:
        if environment is not None and not pairs:
            pairs = await repeat.confirmed(environment, order, _ROUNDS if order else 1)
            beside = beside or repeat.seconds
    if not pairs:
        return None
    found = Disturbed(subject.environment, pairs, own is not None, None)
    note(found)
    if own is not None and is_auto(spec):
        by_itself = await repeat.play(own)
        seconds = max(0.0, repeat.seconds - beside) / len(starts)
        together = await repeat.play(own, _one_by_one)
        is_cured = not any(map(first_difference, by_itself, together))
        found = replace(found, is_cured=is_cured, seconds=seconds)
        note(found)
    return found


def on_workers(spec: EnvironmentSpec, number: int) -> EnvironmentSpec:
    """The same spec with this number of worker processes; 0 is the default number."""
    if spec.mode not in PROCESSES or spec.config is None:
        return spec
    config = copy.copy(spec.config)
    config.isolation_workers = number
    return replace(spec, config=config)


class _Repeat:
    """Repeats the actions of recorded episodes."""

    def __init__(
        self, subject: Subject, starts: Sequence[EpisodeStart], played: Sequence[Trajectory], turns: int | None
    ) -> None:
        self._subject = subject
        self._starts = starts
        self._played = played
        self.environment = on_workers(subject.environment, 1)
        self.alone = played
        """The episodes one after another, in one process."""
        spec = subject.rollout()
        self._spec = spec if turns is None else replace(spec, limits=replace(spec.limits, turns=turns))
        self.seconds = 0.0
        """What the last `play` took."""

    def differing(self, again: Sequence[Trajectory]) -> list[tuple[Trajectory, Trajectory]]:
        """Pairs of the episodes that went differently or failed: before, and again."""
        pairs = [
            (one, other)
            for one, other in zip(self.alone, again, strict=False)  # only some may have been played again
            if one.is_counted and (other.is_counted or other.outcome is Outcome.ENVIRONMENT_FAILED)
        ]
        return [pair for pair in pairs if first_difference(*pair)]

    async def confirmed(
        self, environment: EnvironmentSpec, order: _Order | None, rounds: int
    ) -> list[tuple[Trajectory, Trajectory]]:
        """Episodes that go differently, if some do every time beside others and none alone; otherwise it is chance.

        They need not be the same episodes every time: that depends on the order in which they are reset.
        """
        enough = math.inf if order else _ENOUGH_SECONDS
        pairs = self.differing(await self.play(environment, order, enough))
        for _ in range(rounds):
            if not pairs or self.differing(await self.play(self.environment)):
                return []
            before, pairs = pairs, self.differing(await self.play(environment, order, enough))
            if order is None:  # the order of a set differs between processes without any fault
                went = {one.episode_id: one for _, one in before}
                pairs = [
                    pair
                    for pair in pairs
                    if (one := went.get(pair[1].episode_id)) and not first_difference(one, pair[1])
                ]
        return pairs

    async def play(
        self,
        environment: EnvironmentSpec,
        order: _Order | None = None,
        enough: float = math.inf,
    ) -> list[Trajectory]:
        """Play the episodes; without an order, one after another, and after `enough` seconds only the first two."""
        starts = self._starts
        turns, spec = _Turns(len(starts), order), replace(self._spec, environment=environment)
        replay = Replay(self._played, self._subject.chat.close_id, turns.wait if order else None)

        async def play(start: EpisodeStart) -> Trajectory:
            try:
                [episode] = await self._subject.play(replay, [start], rollout=spec)
                return episode
            finally:
                turns.leave()

        began = time.perf_counter()
        if order is not None:
            played = list(await asyncio.gather(*map(play, starts)))
        else:
            played = list[Trajectory]()
            for start in starts:
                if len(played) < 2 or time.perf_counter() - began < enough:
                    played.append(await play(start))
        self.seconds = time.perf_counter() - began
        return played


_Order = Callable[[int, list[str]], list[str]]
"""Chooses which of the episodes that wait before a turn go on."""


def _one_by_one(turn: int, waiting: list[str]) -> list[str]:
    return [min(waiting) if turn % 2 == 0 else max(waiting)]


def _all_at_once(turn: int, waiting: list[str]) -> list[str]:
    return waiting


class _Turns:
    """Holds each episode before each turn until all others that still run are held too, and then lets some go on."""

    def __init__(self, number: int, order: _Order | None) -> None:
        self._running = number
        self._order = order
        self._held: dict[str, tuple[int, asyncio.Future[None]]] = {}

    async def wait(self, episode_id: str, turn: int) -> None:
        """Wait until it is this episode's turn."""
        here = asyncio.get_running_loop().create_future()
        self._held[episode_id] = turn, here
        self._go_on()
        await asyncio.wait((here,), timeout=_WAIT_SECONDS)  # a call of another one may be slow
        self._held.pop(episode_id, None)

    def leave(self) -> None:
        """An episode has ended."""
        self._running -= 1
        self._go_on()

    def _go_on(self) -> None:
        if self._order is None or not self._held or len(self._held) < self._running:
            return
        first = min(turn for turn, _ in self._held.values())
        for chosen in self._order(first, [one for one, (turn, _) in self._held.items() if turn == first]):
            _, here = self._held.pop(chosen)
            here.set_result(None)


def _held(spec: EnvironmentSpec, count: int) -> EnvironmentSpec | None:
    """The same environments, called in lockstep in a worker process; None if that is impossible."""
    if spec.mode != "process":
        return None
    held = Lockstep.of(spec, count)
    try:
        check_isolation(held)
    except ConfigError:
        return None
    return held
