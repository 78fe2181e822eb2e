"""How calls run: beside each other, off the event loop, from plain code, until they are cancelled."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from turnsmith.concurrency.threads import shared_threads
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
        release.wait(30)
        return ""

    task = asyncio.create_task(ToolRegistry([waits]).call(ToolCall("waits", {})))
    await asyncio.sleep(0.05)
    began = time.perf_counter()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.perf_counter() - began < 20
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


async def test_time_in_the_queue_for_a_thread_does_not_count_against_the_time_limit() -> None:
    limit, rounds, started = 1.0, 4, []

    @tool(time_limit=limit)
    def waits() -> bool:
        """Waits."""
        started.append(time.monotonic())
        time.sleep(0.4 * limit)
        return True

    registry = ToolRegistry([waits])
    began, calls = time.monotonic(), rounds * shared_threads().limit
    results = await asyncio.gather(*(registry.call(ToolCall("waits", {})) for _ in range(calls)))
    assert {result.failure for result in results} == {""}
    assert max(started) - began > limit, "no call waited for longer than the limit"


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

    async def seconds(work: Callable[[], Any]) -> float:
        began = time.process_time()
        for _ in range(100):
            await work()
        return time.process_time() - began

    registry = ToolRegistry([add])
    in_registry = [await seconds(lambda: registry.call(ToolCall("add", {"a": 1, "b": 2}))) for _ in range(20)]
    as_task = [await seconds(lambda: asyncio.create_task(add(1, 2))) for _ in range(20)]
    assert min(in_registry) < 25 * min(as_task)
