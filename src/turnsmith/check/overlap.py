"""Whether episodes go another way than alone when their calls overlap, which is forced here, or come after others.

The actions of episodes that were played one after another are repeated twice: with each call between two calls of the
others. Where environments have worker processes they are also repeated there with each line of a call between two
lines of theirs: a process that runs traced code may crash, and it must not be the user's. And there an episode
is also repeated in a process of its own, which nobody used before.
"""

from __future__ import annotations

import asyncio
import copy
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from turnsmith.check.comparison import first_difference
from turnsmith.check.lockstep import Lockstep
from turnsmith.check.scripted import Replay
from turnsmith.check.subject import Subject
from turnsmith.env.isolation.settings import OWN, PROCESSES, Isolation
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import ConfigError, EnvironmentFailure
from turnsmith.rollout.episode import EpisodeStart
from turnsmith.trajectory import Outcome, Trajectory

FIX = (
    "Keep all state in the object (`self`): no class attributes, module variables, fixed file names or ports, and no "
    "change of the working folder or of environment variables. Every episode has an object of its own."
)
_ROUNDS = 5
"""How often what differs has to differ again: else it is chance."""
_WAIT_SECONDS = 5.0
"""How long an episode waits for its turn, and for the first turns of the others."""


@dataclass(frozen=True, slots=True)
class Disturbed:
    """An environment whose episodes disturb each other."""

    spec: EnvironmentSpec
    differing: list[tuple[Trajectory, Trajectory]]
    """Episodes as they went by themselves, and as they went with others."""
    is_cured: bool
    """Whether they go the same way where each has a worker process to itself, as far as that was tried."""
    seconds: float | None
    """What such a process adds to an episode; None: it was not measured."""

    @property
    def saw(self) -> str:
        """What was seen, in a sentence."""
        return (
            f"Episodes of {self.spec.name} change what others see if they run in one process. In the first, "
            f"{first_difference(*self.differing[0])}."
        )

    @property
    def refusal(self) -> str:
        """Why no run can be made with it, in a sentence; empty: each environment gets a process of its own."""
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
    """Whether it was left to turnsmith where environments run."""
    return getattr(spec.config, "isolation", "auto") == "auto"


def settled(environment: EnvironmentSpec, found: Sequence[Disturbed | None]) -> EnvironmentSpec:
    """The environment with a worker process for each of those of which was found that they disturb each other.

    Args:
        environment: The environment, or a mix.
        found: What was found for each of `environment.each()`.

    Raises:
        EnvironmentFailure: That would not help, or something else was chosen.
    """
    for one in found:
        if one is not None and one.refusal:
            raise EnvironmentFailure(f"{one.saw} {one.refusal} {FIX} training.check=false goes on all the same.")
    return environment.in_own_processes([number for number, one in enumerate(found) if one is not None])


async def look_for_disturbance(
    subject: Subject, starts: Sequence[EpisodeStart], played: Sequence[Trajectory], turns: int | None = None
) -> Disturbed | None:
    """Look whether the actions of episodes go another way beside others than one after another; None: they do not.

    What was found is in `subject.cache` as soon as it is known: this may be stopped before it has tried a cure.

    Args:
        subject: Plays the episodes; not a mix.
        starts: Where they begin.
        played: The episodes.
        turns: Limit on their turns; None: that of training.
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
    found = subject.cache["disturbed"] = Disturbed(subject.environment, pairs, own is not None, None)
    if own is not None and is_auto(spec):
        by_itself = await repeat.play(own)
        seconds = max(0.0, repeat.seconds - beside) / len(starts)
        together = await repeat.play(own, _one_by_one)
        is_cured = not any(map(first_difference, by_itself, together))
        found = subject.cache["disturbed"] = replace(found, is_cured=is_cured, seconds=seconds)
    return found


def on_workers(spec: EnvironmentSpec, number: int) -> EnvironmentSpec:
    """The same spec with so many worker processes; 0: the default."""
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
        """The episodes that went another way, or failed, as they had gone and as they went."""
        pairs = [
            (one, other)
            for one, other in zip(self.alone, again, strict=True)
            if one.is_counted and (other.is_counted or other.outcome is Outcome.ENVIRONMENT_FAILED)
        ]
        return [pair for pair in pairs if first_difference(*pair)]

    async def confirmed(
        self, environment: EnvironmentSpec, order: _Order | None, rounds: int
    ) -> list[tuple[Trajectory, Trajectory]]:
        """Episodes that go another way, if some do each time, and none by themselves: else it is chance.

        Which of them it is may change from time to time, with the order in which they are reset.
        """
        pairs = self.differing(await self.play(environment, order))
        for _ in range(rounds):
            if not pairs or self.differing(await self.play(self.environment)):
                return []
            before, pairs = pairs, self.differing(await self.play(environment, order))
            if order is None:  # what differs from one process to the next, as the order of a set, is nobody's doing
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
    ) -> list[Trajectory]:
        """Play the episodes; without an order, one after another."""
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
        played = await asyncio.gather(*map(play, starts)) if order else [await play(start) for start in starts]
        self.seconds = time.perf_counter() - began
        return played


_Order = Callable[[int, list[str]], list[str]]
"""Chooses who goes on, of those who wait for the turn of a number."""


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
    """The same environments, called in lockstep in a worker process; None: they cannot be."""
    held = Lockstep.of(spec, count)
    try:
        if spec.mode == "process":
            from turnsmith.rollout.isolation_check import check_isolation

            check_isolation(held)
            return held
    except ConfigError:
        pass
    return None
