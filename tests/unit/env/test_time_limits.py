"""A call that takes too long is given up, in a thread and on the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from turnsmith.concurrency.environment_threads import EnvironmentThreads
from turnsmith.config import EnvironmentConfig
from turnsmith.env import BaseEnvironment, EnvironmentHost, EnvironmentSpec
from turnsmith.errors import EnvironmentTimeout


class Slow(BaseEnvironment):
    """Waits where its config says, until it is released."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.release = threading.Event()

    def reset(self) -> str:
        self.wait("reset")
        return "start"

    def step(self, action: str) -> Any:
        self.wait("step")
        return "next", 0.0, False, {}

    def close(self) -> None:
        self.wait("close")

    def wait(self, where: str) -> None:
        if self.config.get("where") == where:
            self.release.wait(30)


class AsyncSlow(BaseEnvironment):
    async def reset(self) -> str:
        return "start"

    async def step(self, action: str) -> Any:
        if action == "own":
            raise TimeoutError("mine")
        await asyncio.sleep(5)


def host_of(environment: type, **settings: Any) -> EnvironmentHost:
    return EnvironmentHost(EnvironmentSpec.of(environment, EnvironmentConfig(call_seconds=0.05, **settings)))


async def test_a_plain_call_is_abandoned():
    host = host_of(Slow, where="step")
    await host.reset()
    with pytest.raises(EnvironmentTimeout, match=r"Slow.step took longer than 0.05 seconds; environment.call_seconds"):
        await host.step("a")
    assert host.is_busy
    host.environment.release.set()
    await host.settle()
    assert not host.is_busy
    with pytest.raises(EnvironmentTimeout, match=r"Slow.reset took longer"):
        await host_of(Slow, where="reset").reset()


async def test_a_close_that_hangs_is_abandoned(caplog: pytest.LogCaptureFixture):
    host = host_of(Slow, where="close")
    await host.reset()
    began = time.monotonic()
    await host.close()
    assert time.monotonic() - began < 20
    assert "Slow.close took longer than 0.05 seconds" in caplog.text
    host.environment.release.set()


async def test_an_async_call_is_cancelled():
    for mode in ("thread", "loop"):
        host = host_of(AsyncSlow, isolation=mode)
        await host.reset()
        with pytest.raises(EnvironmentTimeout, match=r"AsyncSlow.step took longer than 0.05 seconds"):
            await host.step("a")
        with pytest.raises(Exception, match=r"AsyncSlow.step raised TimeoutError: mine"):
            await host.step("own")
        assert not host.is_busy


async def test_waiting_for_a_thread_takes_nothing_off_the_time():
    threads = EnvironmentThreads(limit=1)
    spec = EnvironmentSpec.of(Slow, EnvironmentConfig(call_seconds=0.1))
    hosts = [EnvironmentHost(spec, threads) for _ in range(2)]
    await asyncio.gather(*(host.reset() for host in hosts))
    block = threads.assign().start(time.sleep, 0.25)
    assert [result.observation for result in await asyncio.gather(*(host.step("a") for host in hosts))] == ["next"] * 2
    await block.wait()


async def test_in_the_loop_nothing_leaves_its_thread():
    host = host_of(Slow, isolation="loop")
    await host.reset()
    assert (await host.step("a")).observation == "next"
    await host.close()
