"""How calls run: beside each other, off the event loop, from plain code, until they are cancelled."""

import asyncio
import threading
import time
from typing import Any

import pytest

from turnsmith.tools.definition import ToolCall
from turnsmith.tools.registry import ToolRegistry
from turnsmith.tools.tool import current_episode, tool


@tool
def fine(x: int = 1) -> str:
    """Fine."""
    return f"fine {x}"


async def test_cancellation_from_outside_propagates_and_the_tool_cleans_up() -> None:
    events: list[str] = []

    @tool
    async def waits() -> str:
        """Waits."""
        try:
            await asyncio.sleep(20)
        finally:
            await asyncio.sleep(0.01)
            events.append("cleaned up")
        return ""

    task = asyncio.create_task(ToolRegistry([waits]).call(ToolCall("waits", {})))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert events == ["cleaned up"]


async def test_cancellation_from_outside_does_not_wait_for_a_thread() -> None:
    release = threading.Event()

    @tool
    def waits() -> str:
        """Waits."""
        release.wait(20)
        return ""

    task = asyncio.create_task(ToolRegistry([waits]).call(ToolCall("waits", {})))
    await asyncio.sleep(0.05)
    began = time.perf_counter()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.perf_counter() - began < 0.5
    release.set()


async def test_plain_tools_run_side_by_side_off_the_event_loop() -> None:
    all_at_once = threading.Barrier(8)

    @tool
    def waits_for_the_others() -> str:
        """Waits for the others."""
        all_at_once.wait(10)
        return threading.current_thread().name

    registry = ToolRegistry([waits_for_the_others])
    results = await asyncio.gather(*(registry.call(ToolCall("waits_for_the_others", {})) for _ in range(8)))
    assert all(result.ok for result in results)
    assert threading.current_thread().name not in {result.text for result in results}


async def test_a_call_that_waited_too_long_for_a_thread_is_never_run() -> None:
    release, started = threading.Event(), []

    @tool(time_limit=0.3)
    def waits() -> bool:
        """Waits."""
        started.append(threading.current_thread())
        return release.wait(20)

    registry = ToolRegistry([waits, fine])
    results = await asyncio.gather(*(registry.call(ToolCall("waits", {})) for _ in range(100)))  # more than threads
    assert {result.failure for result in results} == {"waits took longer than 0.3 seconds."}
    before = len(started)
    release.set()
    assert (await registry.call(ToolCall("fine", {}))).ok  # it was queued behind all of them
    assert len(started) == before < 100


async def test_an_awaitable_that_a_plain_function_returns_is_awaited_within_the_time_limit() -> None:
    @tool(time_limit=0.2)
    def wraps(seconds: float) -> Any:
        """Wraps."""
        return asyncio.sleep(seconds, f"awake in {current_episode()}")

    registry = ToolRegistry([wraps])
    result = await registry.call(ToolCall("wraps", {"seconds": 0.001}), episode_id="e")
    assert (result.ok, result.text) == (True, "awake in e")
    late = await registry.call(ToolCall("wraps", {"seconds": 20}))
    assert late.failure == "wraps took longer than 0.2 seconds."


async def test_every_call_knows_its_episode() -> None:
    @tool
    def plain() -> str:
        """Plain."""
        return current_episode()

    @tool
    async def later() -> str:
        """Later."""
        await asyncio.sleep(0.001)
        return await asyncio.create_task(asyncio.sleep(0, current_episode()))

    registry = ToolRegistry([plain, later])
    names = [f"episode-{n}" for n in range(20)]
    for name in ("plain", "later"):
        results = await asyncio.gather(*(registry.call(ToolCall(name, {}), episode_id=each) for each in names))
        assert [result.text for result in results] == names
    assert current_episode() == ""


def test_execute_tool_works_without_an_event_loop() -> None:
    @tool
    async def later(x: int) -> int:
        """Later."""
        await asyncio.sleep(0.001)
        return x + 1

    assert ToolRegistry([later]).execute_tool("later", x=1) == (True, 2)
    assert ToolRegistry([fine]).execute_tool("fine") == (True, "fine 1")


async def test_execute_tool_works_inside_an_event_loop_and_inside_a_tool() -> None:
    registry = ToolRegistry([fine])

    @registry.register
    @tool
    async def outer() -> str:
        """Outer."""
        return registry.execute_tool("fine", x=3)[1]

    assert registry.execute_tool("outer") == (True, "fine 3")
    assert (await registry.call(ToolCall("outer", {}))).text == "fine 3"


async def test_a_trivial_async_tool_costs_little() -> None:
    @tool
    async def add(a: int, b: int) -> str:
        """Add."""
        return str(a + b)

    registry = ToolRegistry([add])
    best = 1.0
    for _ in range(20):
        began = time.process_time()  # not the wall clock: other work shares the machine
        for _ in range(100):
            await registry.call(ToolCall("add", {"a": 1, "b": 2}), episode_id="e")
        best = min(best, (time.process_time() - began) / 100)
    assert best < 200e-6
