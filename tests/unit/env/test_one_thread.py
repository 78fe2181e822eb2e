"""All calls of one environment object come from one thread, however many there are and whatever its methods."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from turnsmith import BaseEnvironment, Trajectory, tool
from turnsmith.concurrency.environment_threads import EnvironmentThreads
from turnsmith.config import EnvironmentConfig
from turnsmith.env import EnvironmentHost, EnvironmentSpec
from turnsmith.env.host import open_host
from turnsmith.env.isolation.pool import close_workers
from turnsmith.errors import EnvironmentTimeout, Overloaded
from turnsmith.rollout.rewards.reward_function import compute_score
from turnsmith.tools.definition import ToolCall
from turnsmith.tools.registry import ToolRegistry


class Ledger(BaseEnvironment):
    """Opens a database in `reset`, with SQLite's own settings, and uses it everywhere else."""

    def reset(self, seed: int = 0) -> str:
        self.database = sqlite3.connect(":memory:")
        self.database.execute("create table entries (amount integer)")
        return "Book something."

    def step(self, action: str) -> Any:
        self.database.execute("insert into entries values (?)", (int(action),))
        return f"The sum is {self.total()}.", float(self.total()), False, {}

    def is_done(self) -> bool:
        return self.total() > 100

    @tool
    def balance(self) -> int:
        """The sum of all entries."""
        return self.total()

    @tool
    async def later(self) -> int:
        """The sum of all entries, a little later."""
        await asyncio.sleep(0.01)
        return self.total()

    def total(self) -> int:
        return self.database.execute("select coalesce(sum(amount), 0) from entries").fetchone()[0]

    def close(self) -> None:
        self.database.execute("delete from entries")
        self.database.close()


class AsyncLedger(Ledger):
    """The same with a mixture of async and plain methods, and a database from the constructor."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        super().reset()

    async def reset(self) -> str:  # type: ignore[override]
        self.total()
        return "Book something."

    async def step(self, action: str) -> Any:
        await asyncio.sleep(0.01)
        return super().step(action)


class FullyAsync(BaseEnvironment):
    """Only async methods, and a database from the constructor."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.database = sqlite3.connect(":memory:")

    async def reset(self) -> str:
        self.database.execute("create table entries (amount integer)")
        return "Book something."

    async def step(self, action: str) -> Any:
        self.database.execute("insert into entries values (?)", (int(action),))
        return "Done.", 1.0, False, {}

    async def close(self) -> None:
        self.database.close()


def total_of(trajectory: Trajectory, environment: Any) -> float:
    return float(environment.total())


@pytest.mark.parametrize("mode", ["thread", "process", "loop"])
@pytest.mark.parametrize("environment", [Ledger, AsyncLedger])
async def test_a_database_that_reset_opened_works_in_step_tools_rewards_and_close(
    environment: type, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        config = EnvironmentConfig(isolation=mode, isolation_workers=1)
        host = open_host(EnvironmentSpec.of(environment, config))
        await host.reset()
        assert (await host.step("3")).observation == "The sum is 3."
        tools = ToolRegistry(host.tools())
        for name in ("balance", "later"):
            result = await tools.call(ToolCall(name, {}))
            assert (result.ok, result.text) == (True, "3"), result.failure
        assert await host.is_over() is False
        assert await compute_score(total_of, Trajectory(), host.environment, 9.0, host.thread) == 3.0
        await host.close()

    await asyncio.gather(*(play() for _ in range(40)))
    await close_workers()
    assert caplog.text == "", "close failed"


async def test_an_object_with_only_async_methods_lives_on_the_event_loop_with_its_constructor() -> None:
    host = EnvironmentHost(EnvironmentSpec.of(FullyAsync))
    await host.reset()
    assert (await host.step("1")).reward == 1.0
    host.environment.database.execute("select * from entries")  # this is the event loop's thread
    await host.close()


class Bound(BaseEnvironment):
    """A library that serves one object per thread, and no running event loop, as Playwright's sync API does."""

    in_use = threading.local()

    def reset(self) -> str:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        assert not getattr(self.in_use, "owner", None), "the thread is shared"
        self.in_use.owner = self
        return "start"

    def step(self, action: str) -> Any:
        assert self.in_use.owner is self, "another thread"
        return asyncio.run(asyncio.sleep(0, "next")), 1.0, False, {}

    def close(self) -> None:
        assert self.in_use.owner is self, "another thread"
        self.in_use.owner = None


async def test_environments_do_not_share_a_thread_as_long_as_the_limit_allows_more() -> None:
    threads = EnvironmentThreads(limit=16)
    spec = EnvironmentSpec.of(Bound)

    async def play() -> None:
        host = EnvironmentHost(spec, threads)
        await host.reset()
        await asyncio.gather(asyncio.sleep(0.001), host.step("a"))
        await host.close()

    for _ in range(3):  # those that are free again are used again
        await asyncio.gather(*(play() for _ in range(16)))


@contextmanager
def threads_started() -> Iterator[list[str]]:
    before, names = set(threading.enumerate()), list[str]()
    yield names
    names += [thread.name for thread in set(threading.enumerate()) - before]


async def test_a_thousand_at_once_share_the_threads_that_there_are() -> None:
    threads = EnvironmentThreads(limit=8)
    spec = EnvironmentSpec.of(Ledger)
    hosts = [EnvironmentHost(spec, threads) for _ in range(1000)]
    with threads_started() as names:
        await asyncio.gather(*(host.reset(seed) for seed, host in enumerate(hosts)))
        for _ in range(3):
            results = await asyncio.gather(*(host.step(str(number)) for number, host in enumerate(hosts)))
        assert [result.reward for result in results] == [3.0 * number for number in range(1000)]
        await asyncio.gather(*(host.close() for host in hosts))
    assert len(names) == 8


class Sleepy(BaseEnvironment):
    """Sleeps as long as its action says."""

    def reset(self) -> str:
        return "start"

    def step(self, action: str) -> Any:
        time.sleep(float(action))
        return "next", 0.0, False, {}

    @tool(time_limit=0.05)
    def nap(self, seconds: float) -> str:
        """Sleep."""
        time.sleep(seconds)
        return "slept"


async def test_waiting_for_a_neighbour_takes_nothing_off_the_time() -> None:
    spec, threads = EnvironmentSpec.of(Sleepy, EnvironmentConfig(call_seconds=0.3)), EnvironmentThreads(limit=1)
    hosts = [EnvironmentHost(spec, threads) for _ in range(8)]
    await asyncio.gather(*(host.reset() for host in hosts))
    await asyncio.gather(*(host.step("0.1") for host in hosts))  # 0.8 s in one thread


async def test_a_call_that_hangs_gives_up_its_neighbours_and_new_ones_get_another_thread() -> None:
    spec, threads = EnvironmentSpec.of(Sleepy, EnvironmentConfig(call_seconds=0.2)), EnvironmentThreads(limit=1)
    hanging, neighbour, late = (EnvironmentHost(spec, threads) for _ in range(3))
    for host in (hanging, neighbour):
        await host.reset()
    first = asyncio.create_task(hanging.step("1"))
    await asyncio.sleep(0.01)
    with pytest.raises(Overloaded, match=r"Sleepy.step could not begin. The thread that it shares"):
        await neighbour.step("0")
    with pytest.raises(EnvironmentTimeout):
        await first
    with pytest.raises(Overloaded):
        await neighbour.step("0")
    assert await late.reset() == "start"
    assert (await late.step("0")).observation == "next"
    for host in (hanging, neighbour, late):
        await host.close()


async def test_after_a_tool_that_took_too_long_the_next_call_waits_for_its_thread() -> None:
    host = EnvironmentHost(EnvironmentSpec.of(Sleepy, EnvironmentConfig(call_seconds=5)))
    await host.reset()
    tools = ToolRegistry(host.tools())
    assert not (await tools.call(ToolCall("nap", {"seconds": 3.0}))).ok
    began = time.monotonic()
    assert not await host.is_over(), "the episode itself goes on"
    assert time.monotonic() - began < 1.5
    assert (await host.step("0")).observation == "next"
    assert time.monotonic() - began > 1.5, "two calls of one object at once"
    await host.close()


class Mixed(Sleepy):
    """Waits, or blocks its thread, in an async method."""

    async def step(self, action: str) -> Any:
        if action == "block":
            time.sleep(1.5)
        await asyncio.sleep(30)


async def test_an_async_method_is_cancelled_in_its_thread_and_one_that_blocks_counts_as_hanging() -> None:
    spec, threads = EnvironmentSpec.of(Mixed, EnvironmentConfig(call_seconds=0.2)), EnvironmentThreads(limit=1)
    waits, blocks = (EnvironmentHost(spec, threads) for _ in range(2))
    for host in (waits, blocks):
        await host.reset()
    with pytest.raises(EnvironmentTimeout):
        await waits.step("wait")
    assert not waits.is_busy, "its worker would be ended for nothing"
    with pytest.raises(EnvironmentTimeout):
        await blocks.step("block")
    assert blocks.is_busy
    with pytest.raises(Overloaded):
        await waits.step("wait")
    for host in (waits, blocks):
        await host.close()
