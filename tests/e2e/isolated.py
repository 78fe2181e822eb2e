"""What tests of isolation share: an environment that fails on demand, in worker processes of which none may stay."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from tests.e2e.faulty import Faulty
from tests.e2e.marked_processes import processes_with
from turnsmith import EnvironmentConfig
from turnsmith.env.isolation.remote_host import RemoteHost
from turnsmith.env.spec import EnvironmentSpec


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Every process that the test starts has it; none of them may be there after the test."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv("TURNSMITH_TEST_MARK", mark)
    yield mark
    assert_none_left(mark, seconds=0)


def assert_none_left(mark: str, seconds: float) -> None:
    until = time.monotonic() + seconds
    while processes_with(mark) and time.monotonic() < until:
        time.sleep(0.05)
    left = processes_with(mark)
    told = [(process.pid, process.cmdline()) for process in left]
    for process in left:
        process.kill()
    assert not told


def spec(environment: type = Faulty, workers: int = 2, **settings: Any) -> EnvironmentSpec:
    given = {
        "call_seconds": 60.0,
        "isolation_memory_gib": 0.5,
        "isolation_processes": 64,
        "max_steps": 10**9,
        **settings,
    }
    return EnvironmentSpec.of(environment, EnvironmentConfig(isolation="process", isolation_workers=workers, **given))


async def started(found: EnvironmentSpec, seed: int = 0) -> RemoteHost:
    host = RemoteHost(found)
    await host.reset(seed)
    return host


def worker_of(observation: str) -> int:
    return int(observation.rpartition(" ")[2])


def run(play: Callable[[], Awaitable[None]]) -> None:
    """In an event loop of its own: with it, all workers must end."""
    asyncio.run(play())  # type: ignore[arg-type]


async def until(condition: Callable[[], bool], told: str = "") -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail(told or "it did not come to that")
