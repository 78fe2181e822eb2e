"""Global generators, settings and rows belong to one environment, in whatever order the calls of several come."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest
from tests.unit.env import many_episodes, shared_state

from turnsmith.config import EnvironmentConfig
from turnsmith.env import EnvironmentSpec
from turnsmith.env.host import Host, open_host
from turnsmith.env.isolation.pool import isolation_status
from turnsmith.tools.definition import ToolCall
from turnsmith.tools.registry import ToolRegistry

_TASK = {"cards": [1, 2, 3, 4, 5]}


async def _peek(host: Host) -> str:
    tools = host.tools()
    return (await ToolRegistry(tools).call(ToolCall("peek", {}))).text if tools else ""


async def _rest(host: Host) -> list[str]:
    shown = [(await host.step("go")).observation, await _peek(host), (await host.step("go")).observation]
    await host.close()
    return shown


async def _alone(spec: EnvironmentSpec, seed: int) -> list[str]:
    host = open_host(spec)
    return [await host.reset(seed, _TASK), *await _rest(host)]


async def _overlapping(spec: EnvironmentSpec, seeds: range) -> list[list[str]]:
    """All reset at once; then each call of one comes between two calls of each other."""
    hosts = [open_host(spec) for _ in seeds]
    opened = await asyncio.gather(*(host.reset(seed, _TASK) for host, seed in zip(hosts, seeds, strict=True)))
    shown = [[one] for one in opened]
    for call in (_step, _peek, _step):
        for host, mine in zip(hosts, shown, strict=True):
            mine.append(await call(host))
    await asyncio.gather(*(host.close() for host in hosts))
    return shown


async def _step(host: Host) -> str:
    return (await host.step("go")).observation


async def _differing(kinds: Any, isolation: str) -> list[str]:
    """The environments of which an episode went another way than alone."""
    found, seeds = list[str](), range(3, 6)
    for kind in kinds:
        # With one worker for all they share what a process has; of `own_process` each needs one.
        workers = 0 if isolation == "own_process" else 1
        config = EnvironmentConfig(isolation=isolation, isolation_workers=workers, words=[0])
        spec = EnvironmentSpec.of(kind, config)
        alone = [await _alone(spec, seed) for seed in seeds]
        if await _overlapping(spec, seeds) != alone:
            found.append(kind.__name__)
    return found


@pytest.fixture(autouse=True)
def _with_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_state.Draws, "pause", 0.002)


@pytest.mark.parametrize("isolation", ["loop", "thread", "process"])
def test_numbers_settings_and_rows_are_those_of_the_episode_alone(isolation: str) -> None:
    assert asyncio.run(_differing(shared_state.OWN, isolation)) == []


@pytest.mark.nightly
def test_where_eval_and_training_play_them_episodes_go_as_they_do_alone_or_are_refused() -> None:
    """`python -m tests.unit.env.many_episodes` does the same with 512 of each."""
    assert many_episodes.main(["--episodes", "64", "--seconds", "200"]) == 0


@pytest.mark.nightly
def test_a_process_of_its_own_shares_nothing_with_others_or_with_those_before() -> None:
    kinds = shared_state.SHARED
    assert asyncio.run(_differing(kinds, "process")) != []
    assert asyncio.run(_differing(kinds, "own_process")) == []


def test_places_in_processes_of_their_own_are_given_free() -> None:
    async def play(seed: int) -> str:
        host = open_host(spec)
        number = await host.reset(seed)
        assert isolation_status().workers <= 2
        await host.close()
        return number

    async def play_all() -> list[str]:
        return await asyncio.gather(*map(play, range(3)))

    spec = EnvironmentSpec.of(shared_state.ModuleState, EnvironmentConfig(isolation="own_process", isolation_workers=2))
    assert asyncio.run(play_all()) == [str(seed) for seed in range(3)]


@pytest.mark.nightly
@pytest.mark.parametrize("isolation", ["loop", "thread", "process"])
def test_long_draws_and_those_of_torch(isolation: str) -> None:
    assert asyncio.run(_differing(shared_state.LONG, isolation)) == []


def test_what_is_not_seeded_comes_from_the_seed_of_the_episode() -> None:
    shown = asyncio.run(_alone(EnvironmentSpec.of(shared_state.Unseeded), 7))
    assert shown[0] == str([random.Random(7).random(), np.random.RandomState(7).rand()])


def test_draws_outside_of_environments_go_on_as_without_them() -> None:
    random.seed(1)
    np.random.seed(1)
    expected = [random.random(), random.random(), np.random.rand(), np.random.rand()]
    random.seed(1)
    np.random.seed(1)
    first = [random.random(), np.random.rand()]
    asyncio.run(_alone(EnvironmentSpec.of(shared_state.Imported), 3))
    assert [first[0], random.random(), first[1], np.random.rand()] == expected
