"""Episodes that disturb each other are found by calls that overlap by force, and get processes of their own."""

from __future__ import annotations

import os
import random
import re
import time
from typing import Any

import pytest
from tests.unit.check.environment.zoo.state import FixedFile
from tests.unit.env import shared_state

from turnsmith.check.environment import overlap
from turnsmith.check.environment.checks.repeats import check_briefly, check_interleaved
from turnsmith.check.environment.overlap import disturbed_in, settled
from turnsmith.check.environment.subject import Subject
from turnsmith.check.finding import Finding
from turnsmith.config import ConfigStore, EnvironmentConfig
from turnsmith.env import BaseEnvironment, EnvironmentSpec
from turnsmith.env.isolation.pool import close_workers
from turnsmith.env.mix import EnvironmentMix
from turnsmith.errors import EnvironmentFailure

ROWS = [{"cards": [1, 2, 3, 4, 5]}, {"cards": [6, 7, 8, 9]}]


def subject_of(environment: Any, isolation: str = "thread") -> Subject:
    spec = EnvironmentSpec.of(environment, EnvironmentConfig(isolation=isolation, words=[0]))
    return Subject(environment=spec.isolated(), config=ConfigStore(), tasks=ROWS, episodes=4)


async def found_in(subject: Subject) -> Finding:
    try:
        return await check_briefly(subject)
    finally:
        await close_workers()


class BetweenTwoLines(BaseEnvironment):
    """Changes its class in a call and reads it in the next line of the same call."""

    number = 0

    def reset(self, seed: int = 0) -> str:
        self.seed = seed
        return "Say something."

    def step(self, action: str) -> Any:
        type(self).number = self.seed
        return f"Your number is {type(self).number}.", 0.0, True, {}


class Chance(BaseEnvironment):
    """Says something else each time, which no other episode is to blame for."""

    def reset(self) -> str:
        return f"It is {time.perf_counter_ns()}."

    def step(self, action: str) -> Any:
        return f"{random.SystemRandom().random()}", 0.0, True, {}


@pytest.mark.parametrize("environment", shared_state.SHARED[:3], ids=lambda one: one.__name__)
async def test_what_threads_share_is_found_and_refused(environment: Any) -> None:
    subject = subject_of(environment)
    finding = await found_in(subject)
    assert finding.status == "failed"
    assert finding.saw.startswith(f"Episodes of {environment.__name__} change what others see if they run in one proc")
    with pytest.raises(EnvironmentFailure, match=r"With environment\.isolation=thread they share one: with auto"):
        settled(subject.environment, disturbed_in(subject))


class Coin(BaseEnvironment):
    """Differs by chance in every other episode."""

    def reset(self) -> str:
        return "Say something."

    def step(self, action: str) -> Any:
        return "yes", float(random.SystemRandom().random() < 0.5), True, {}


@pytest.mark.parametrize("environment", [*shared_state.OWN, Chance, Coin], ids=lambda one: one.__name__)
async def test_what_belongs_to_one_environment_and_chance_are_no_disturbance(environment: Any) -> None:
    subject = subject_of(environment)
    finding = await found_in(subject)
    assert finding.status == "passed", finding
    assert settled(subject.environment, disturbed_in(subject)) is subject.environment


@pytest.mark.nightly
@pytest.mark.parametrize("environment", shared_state.SHARED, ids=lambda one: one.__name__)
async def test_each_gets_a_process(environment: Any) -> None:
    subject = subject_of(environment, "auto")
    finding = await found_in(subject)
    assert finding.status == "warning"
    assert re.search(r"So each gets a worker process to itself, which takes [\d.]+ s to start", finding.saw)
    assert settled(subject.environment, disturbed_in(subject)).mode == "own_process"


@pytest.mark.nightly
async def test_what_processes_share_too_is_refused() -> None:
    subject = subject_of(FixedFile, "auto")
    assert (await found_in(subject)).status == "failed"
    with pytest.raises(EnvironmentFailure, match="in processes of their own, too: they share something outside"):
        settled(subject.environment, disturbed_in(subject))


class OfItsProcess(Chance):
    """Says what is the same in a process, and another in the next."""

    def reset(self) -> str:
        return f"It is {os.getpid()} and {hash('it')}."

    def step(self, action: str) -> Any:
        return "yes", 0.0, True, {}


@pytest.mark.nightly
@pytest.mark.parametrize("environment", [shared_state.Draws, Chance, OfItsProcess], ids=lambda one: one.__name__)
async def test_others_stay_where_they_are(environment: Any) -> None:
    subject = subject_of(environment, "auto")
    assert (await found_in(subject)).status == "passed"
    assert settled(subject.environment, disturbed_in(subject)).mode == "process"


async def test_of_a_mix_only_the_environment_that_disturbs_gets_processes() -> None:
    mix = EnvironmentMix({"quiet": shared_state.Draws, "loud": shared_state.Variable})
    spec = EnvironmentSpec.of(mix, EnvironmentConfig(isolation="thread", words=[0]))
    subject = Subject(environment=spec, config=ConfigStore(), episodes=4)
    assert (await found_in(subject)).status == "failed"
    quiet, loud = disturbed_in(subject)
    assert quiet is None
    assert loud.spec.name == "Variable"
    own = spec.in_own_processes([1])
    assert [one.mode for one in own.each()] == ["thread", "own_process"]


async def test_turnsmith_check_looks_for_it_too() -> None:
    assert (await check_interleaved(subject_of(shared_state.SHARED[0]))).status == "failed"


@pytest.mark.nightly
async def test_in_a_worker_process_two_lines_of_a_call_overlap() -> None:
    assert (await found_in(subject_of(BetweenTwoLines, "process"))).status == "failed"


@pytest.mark.nightly
async def test_what_takes_long_to_start_is_started_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    async def note_mode(self: Subject, *args: Any, **options: Any) -> Any:
        modes.append(options["rollout"].environment.mode if "rollout" in options else "")
        return await play(self, *args, **options)

    modes, play = list[str](), Subject.play
    monkeypatch.setattr(Subject, "play", note_mode)
    monkeypatch.setattr(overlap, "_ENOUGH_SECONDS", 0.0)
    assert (await found_in(subject_of(shared_state.Draws, "process"))).status == "passed"
    assert modes.count("own_process") == 2
    assert modes.count("process") > 4, "and all of them beside each other"
