"""Where each running episode is: with the engine or in its environment, and since when. Tells what stands still."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

from turnsmith.inference.engine import Engine, Generation, Sampling

Place = Literal["engine", "environment"]
_SAYING = {"engine": "wait for the engine", "environment": "are in their environment, a tool or the reward function"}


class InFlightEpisodes:
    """The running episodes of one process.

    Example:
        >>> activity = InFlightEpisodes()
        >>> activity.move("7-0", "environment")
        >>> activity.moves, activity.standing(now=time.monotonic() + 90)
        (1, '1 episodes are in their environment, a tool or the reward function (7-0 for 90 s)')
        >>> activity.end("7-0")
        >>> activity.standing()
        'no episode is running'
    """

    def __init__(self) -> None:
        self.moves = 0
        """Goes up whenever an episode gets on; as long as it does, nothing stands still."""
        self._where: dict[str, tuple[Place, float]] = {}

    def move(self, name: str, place: Place) -> None:
        """Note that an episode is now somewhere else."""
        self.moves += 1
        self._where[name] = (place, time.monotonic())

    def end(self, name: str) -> None:
        """Note that an episode is over."""
        self.moves += 1
        self._where.pop(name, None)

    def standing(self, now: float | None = None) -> str:
        """How many episodes wait where, and which one the longest."""
        now = time.monotonic() if now is None else now
        told: list[str] = []
        running = list(self._where.items())
        for place, saying in _SAYING.items():
            here = [(since, name) for name, (where, since) in running if where == place]
            if here:
                since, name = min(here)
                told.append(f"{len(here)} episodes {saying} ({name} for {now - since:.0f} s)")
        return "; ".join(told) or "no episode is running"


class TrackedEngine:
    """An engine that notes where an episode is, because it is asked whenever the episode gets on."""

    def __init__(self, engine: Engine, activity: InFlightEpisodes, name: str) -> None:
        self.inner = engine
        self._activity = activity
        self._name = name

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
        """Continue `prompt_ids`."""
        self._activity.move(self._name, "engine")
        try:
            return await self.inner.generate(prompt_ids, sampling, session=session)
        finally:
            self._activity.move(self._name, "environment")
