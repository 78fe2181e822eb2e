"""Which episodes run, what each waits for, and for how long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from turnsmith.inference.engine import Generation, Sampling
from turnsmith.rollout.in_flight import InFlightEpisodes, TrackedEngine


def test_the_longest_of_each_phase_is_named() -> None:
    running = InFlightEpisodes()
    assert (running.transitions, running.describe()) == (0, "no episode is running")
    for name, phase in (("a", "engine"), ("b", "environment"), ("c", "environment"), ("d", "environment")):
        running.enter(name, phase)  # type: ignore[arg-type]
    running.end("d")
    assert running.transitions == 5
    assert running.describe(now=time.monotonic() + 90) == (
        "1 episode waiting for the engine (longest: a, 90 s); "
        "2 episodes in the environment, a tool or the reward function (longest: b, 90 s)"
    )


class Asking:
    """An engine that says where its episode is, or fails."""

    def __init__(self, running: InFlightEpisodes) -> None:
        self.running, self.said = running, ""

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
        self.said = self.running.describe()
        if session == "fails":
            raise OSError("gone")
        return Generation([7], [0.0])


def test_an_episode_is_in_its_environment_unless_the_engine_has_it() -> None:
    running = InFlightEpisodes()
    inner = Asking(running)
    engine = TrackedEngine(inner, running, "a")
    assert asyncio.run(engine.generate([1], Sampling(), session="works")).token_ids == [7]
    assert inner.said.startswith("1 episode waiting for the engine (longest: a")
    assert running.describe().startswith("1 episode in the environment")
    with pytest.raises(OSError, match="gone"):
        asyncio.run(engine.generate([1], Sampling(), session="fails"))
    assert running.describe().startswith("1 episode in the environment")
