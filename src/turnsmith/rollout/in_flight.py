"""Which episodes are running, and whether each waits for the engine or for its environment; for the stall watchdog."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

from turnsmith.inference.engine import Engine, Generation, Sampling

Phase = Literal["engine", "environment"]
_DESCRIPTIONS = {
    "engine": "waiting for the engine",
    "environment": "in the environment, a tool or the reward function",
}


class InFlightEpisodes:
    """The running episodes of one process.

    Example:
        >>> in_flight = InFlightEpisodes()
        >>> in_flight.enter("7-0", "environment")
        >>> in_flight.transitions, in_flight.describe(now=time.monotonic() + 90)
        (1, '1 episode in the environment, a tool or the reward function (longest: 7-0, 90 s)')
        >>> in_flight.end("7-0")
        >>> in_flight.describe()
        'no episode is running'
    """

    def __init__(self) -> None:
        self.transitions = 0
        """Grows whenever an episode enters a phase or ends; while it grows, the process is not stalled."""
        self._phases: dict[str, tuple[Phase, float]] = {}

    def enter(self, episode_id: str, phase: Phase) -> None:
        """Record that an episode enters a phase now."""
        self.transitions += 1
        self._phases[episode_id] = (phase, time.monotonic())

    def end(self, episode_id: str) -> None:
        """Record that an episode has ended."""
        self.transitions += 1
        self._phases.pop(episode_id, None)

    def describe(self, now: float | None = None) -> str:
        """Say how many episodes are in each phase, and which has been there longest."""
        now = time.monotonic() if now is None else now
        running = list(self._phases.items())  # a copy: the event loop's thread may change it meanwhile
        parts: list[str] = []
        for phase, description in _DESCRIPTIONS.items():
            waiting = [(since, episode_id) for episode_id, (current, since) in running if current == phase]
            if waiting:
                since, episode_id = min(waiting)
                number = "1 episode" if len(waiting) == 1 else f"{len(waiting)} episodes"
                parts.append(f"{number} {description} (longest: {episode_id}, {now - since:.0f} s)")
        return "; ".join(parts) or "no episode is running"


class TrackedEngine:
    """An engine that keeps `InFlightEpisodes` up to date: an episode is in its environment whenever it is not here."""

    def __init__(self, engine: Engine, in_flight: InFlightEpisodes, episode_id: str) -> None:
        self.inner = engine
        self._in_flight = in_flight
        self._episode_id = episode_id

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
        """Continue `prompt_ids`."""
        self._in_flight.enter(self._episode_id, "engine")
        try:
            return await self.inner.generate(prompt_ids, sampling, session=session)
        finally:
            self._in_flight.enter(self._episode_id, "environment")
