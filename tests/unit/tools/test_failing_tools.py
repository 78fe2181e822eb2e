"""Whatever a tool does costs one recorded result; the next call works."""

import asyncio
import gc
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from turnsmith.errors import ToolError
from turnsmith.tools import execution
from turnsmith.tools.definition import ToolCall, ToolResult
from turnsmith.tools.registry import ToolRegistry
from turnsmith.tools.tool import tool

SECRET = "password-in-the-message"


@tool
def fine(x: int = 1) -> str:
    """Fine."""
    return f"fine {x}"


@tool
def raises() -> str:
    """Raises."""
    raise RuntimeError(SECRET)


@tool
async def raises_async() -> str:
    """Raises async."""
    raise KeyError(SECRET)


@tool(time_limit=0.1)
def hangs() -> str:
    """Hangs."""
    time.sleep(2)
    return "too late"


@tool(time_limit=0.1)
async def hangs_async() -> str:
    """Hangs async."""
    await asyncio.sleep(20)
    return "too late"


@tool(time_limit=0.1)
async def ignores_its_cancellation() -> str:
    """Ignores its cancellation."""
    while True:
        try:
            await asyncio.sleep(0.2)
        except asyncio.CancelledError:
            pass


@tool
def exits() -> str:
    """Exits."""
    sys.exit(SECRET)


@tool
async def exits_async() -> str:
    """Exits async."""
    sys.exit(SECRET)


@tool
def interrupts() -> str:
    """Interrupts."""
    raise KeyboardInterrupt(SECRET)


@tool
async def interrupts_async() -> str:
    """Interrupts async."""
    raise KeyboardInterrupt(SECRET)


@tool
async def is_cancelled() -> str:
    """Is cancelled."""
    raise asyncio.CancelledError(SECRET)


@tool
async def cancels_the_current_task() -> str:
    """Cancels the current task."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(5)
    return "never"


@tool
def cancelled_in_a_thread() -> str:
    """Cancelled in a thread."""
    raise asyncio.CancelledError(SECRET)


@tool
async def closes_itself() -> str:
    """Closes itself."""
    raise GeneratorExit(SECRET)


@tool
def stops() -> str:
    """Stops."""
    raise StopIteration(SECRET)


@tool
async def wrong_type() -> Any:
    """Wrong type."""
    return object()


@tool
def wrong_type_inside() -> Any:
    """Wrong type inside."""
    return {"rows": [object()]}


@tool
async def fails_in_its_clean_up() -> str:
    """Fails in its clean up."""
    try:
        return "good"
    finally:
        raise OSError(SECRET)


@tool(time_limit=0.1)
async def fails_when_stopped() -> str:
    """Fails when stopped."""
    try:
        await asyncio.sleep(20)
    finally:
        raise OSError(SECRET)


async def numbers() -> AsyncIterator[int]:
    try:
        yield 1
        yield 2
    finally:
        raise OSError(SECRET)


@tool
async def leaves_a_generator_that_fails() -> str:
    """Leaves a generator that fails."""
    async for number in numbers():
        if number == 2:
            break
    raise OSError(SECRET)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError(SECRET)


@tool
def raises_the_unprintable() -> str:
    """Raises the unprintable."""
    raise Unprintable


FAILING = [
    raises,
    raises_async,
    hangs,
    hangs_async,
    ignores_its_cancellation,
    exits,
    exits_async,
    interrupts,
    interrupts_async,
    is_cancelled,
    cancels_the_current_task,
    cancelled_in_a_thread,
    closes_itself,
    stops,
    wrong_type,
    wrong_type_inside,
    fails_in_its_clean_up,
    fails_when_stopped,
    leaves_a_generator_that_fails,
    raises_the_unprintable,
]


@pytest.fixture(scope="module", autouse=True)
def _little_garbage_to_look_through() -> None:
    gc.freeze()


@pytest.mark.parametrize("failing", FAILING, ids=lambda each: each.__name__)
async def test_a_failing_tool_costs_one_recorded_failure(failing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "GRACE", 0.1)
    registry = ToolRegistry([failing, fine])
    call = ToolCall(failing.__name__, {})
    result = await registry.call(call)
    assert call.result is result
    assert not result.ok
    assert result.failure.startswith(failing.__name__)
    assert SECRET not in result.text
    assert result.text.endswith(".")
    assert 0 < result.seconds < 5
    after = await registry.call(ToolCall("fine", {"x": 2}))
    assert (after.ok, after.text, after.failure) == (True, "fine 2", "")
    gc.collect()


async def test_a_failure_names_the_error_and_the_line() -> None:
    result = await ToolRegistry([raises]).call(ToolCall("raises", {}))
    assert result.failure.startswith(f"raises raised RuntimeError: {SECRET} (in raises, test_failing_tools.py line ")


async def test_what_the_model_is_told_when_it_takes_too_long() -> None:
    result = await ToolRegistry([hangs_async]).call(ToolCall("hangs_async", {}))
    assert result.text == "The tool took too long and was stopped."
    assert result.failure == "hangs_async took longer than 0.1 seconds."
    assert 0.1 <= result.seconds < 5


async def test_a_tokenizer_that_fails_is_a_failure() -> None:
    @tool
    async def says() -> str:
        """Says."""
        return "x" * 2000

    def count(text: str) -> list[int]:
        raise ValueError(SECRET)

    result = await ToolRegistry([says]).call(ToolCall("says", {}), count=count)
    assert not result.ok
    assert SECRET in result.failure


async def test_a_tool_error_is_told_and_is_no_failure() -> None:
    @tool(max_output_tokens=20)
    async def refuses(long: bool = False) -> str:
        """Refuses."""
        raise ToolError("There is no order 7." * (100 if long else 1))

    registry = ToolRegistry([refuses])
    assert await registry.call(ToolCall("refuses", {})) == ToolResult(
        False, "There is no order 7.", seconds=pytest.approx(0, abs=1)
    )
    long = await registry.call(ToolCall("refuses", {"long": True}))
    assert long.cut
    assert len(long.text) <= 80
