"""Whatever a tool does costs one recorded result; the next call works."""

import asyncio
import gc
import sys
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from turnwise.errors import ConfigError, ToolError
from turnwise.tools.definition import ToolCall, ToolResult
from turnwise.tools.registry import ToolRegistry
from turnwise.tools.tool import Tool, current_episode, tool

SECRET = "password-in-the-message"


@tool
def fine(x: int = 1) -> str:
    return f"fine {x}"


@tool
def raises() -> str:
    raise RuntimeError(SECRET)


@tool
async def raises_async() -> str:
    raise KeyError(SECRET)


@tool(time_limit=0.1)
def hangs() -> str:
    time.sleep(2)
    return "too late"


@tool(time_limit=0.1)
async def hangs_async() -> str:
    await asyncio.sleep(20)
    return "too late"


@tool(time_limit=0.1)
async def ignores_its_cancellation() -> str:
    while True:
        try:
            await asyncio.sleep(0.2)
        except asyncio.CancelledError:
            pass


@tool
def exits() -> str:
    sys.exit(SECRET)


@tool
async def exits_async() -> str:
    sys.exit(SECRET)


@tool
def interrupts() -> str:
    raise KeyboardInterrupt(SECRET)


@tool
async def interrupts_async() -> str:
    raise KeyboardInterrupt(SECRET)


@tool
async def is_cancelled() -> str:
    raise asyncio.CancelledError(SECRET)


@tool
async def cancels_the_current_task() -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(5)
    return "never"


@tool
def cancelled_in_a_thread() -> str:
    raise asyncio.CancelledError(SECRET)


@tool
async def closes_itself() -> str:
    raise GeneratorExit(SECRET)


@tool
def stops() -> str:
    raise StopIteration(SECRET)


@tool
async def wrong_type() -> Any:
    return object()


@tool
def wrong_type_inside() -> Any:
    return {"rows": [object()]}


@tool
async def fails_in_its_clean_up() -> str:
    try:
        return "good"
    finally:
        raise OSError(SECRET)


@tool(time_limit=0.1)
async def fails_when_stopped() -> str:
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
    async for number in numbers():
        if number == 2:
            break
    raise OSError(SECRET)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError(SECRET)


@tool
def raises_the_unprintable() -> str:
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


@pytest.mark.parametrize("failing", FAILING, ids=lambda each: each.__name__)
async def test_a_failing_tool_costs_one_recorded_failure(failing: Any) -> None:
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
    assert result.failure.startswith(f"raises raised RuntimeError: {SECRET} (in raises, test_registry.py line ")


async def test_what_the_model_is_told_when_it_takes_too_long() -> None:
    result = await ToolRegistry([hangs_async]).call(ToolCall("hangs_async", {}))
    assert result.text == "The tool took too long and was stopped."
    assert result.failure == "hangs_async took longer than 0.1 seconds."
    assert 0.1 <= result.seconds < 5


async def test_fifty_megabytes_cost_one_cut_result() -> None:
    @tool(max_output_tokens=100)
    def huge() -> str:
        return "first " + "x" * 50_000_000 + "\ud800 last"

    began = time.perf_counter()
    result = await ToolRegistry([huge]).call(ToolCall("huge", {}))
    assert time.perf_counter() - began < 3
    assert result.ok
    assert result.cut
    assert result.value is None
    assert result.text.startswith("first x")
    assert result.text.endswith("x\ufffd last")
    assert " characters left out] " in result.text
    assert len(result.text) <= 400


async def test_a_tool_error_is_told_and_is_no_failure() -> None:
    @tool(max_output_tokens=20)
    async def refuses(long: bool = False) -> str:
        raise ToolError("There is no order 7." * (100 if long else 1))

    registry = ToolRegistry([refuses])
    assert await registry.call(ToolCall("refuses", {})) == ToolResult(
        False, "There is no order 7.", seconds=pytest.approx(0, abs=1)
    )
    long = await registry.call(ToolCall("refuses", {"long": True}))
    assert long.cut
    assert len(long.text) <= 80


async def test_mistakes_of_the_model_are_sentences_and_no_failures() -> None:
    registry = ToolRegistry([fine])
    for call, sentence in [
        (ToolCall("fin", {}), "There is no tool fin. Did you mean fine?"),
        (ToolCall("\ud800" * 500, {}), f"There is no tool {chr(0xFFFD) * 80}. The tools are fine."),
        (ToolCall(None, {}), "There is no tool of that name. The tools are fine."),  # type: ignore[arg-type]
        (ToolCall(["x"], {}), "There is no tool of that name. The tools are fine."),  # type: ignore[arg-type]
        (ToolCall("fine", {"x": "many"}), "The argument x must be a valid integer, not 'many'."),
        (ToolCall("fine", {"x": 10**5000}), "A number in the arguments has more than 64 digits."),
        (ToolCall("fine", "x=1"), "The arguments must be an object with one entry for each argument."),  # type: ignore[arg-type]
    ]:
        result = await registry.call(call)
        assert (result.ok, result.text, result.failure) == (False, sentence, "")


async def test_the_output_is_measured_with_the_models_tokenizer() -> None:
    @tool(max_output_tokens=50)
    async def says(length: int) -> str:
        return "x" * length

    def count(text: str) -> list[int]:  # one token for each character
        return [ord(character) for character in text]

    registry = ToolRegistry([says])
    assert not (await registry.call(ToolCall("says", {"length": 50}), count=count)).cut
    result = await registry.call(ToolCall("says", {"length": 51}), count=count)
    assert result.cut
    assert len(result.text) <= 50


async def test_a_tokenizer_that_fails_is_a_failure() -> None:
    @tool
    async def says() -> str:
        return "x" * 2000

    def count(text: str) -> list[int]:
        raise ValueError(SECRET)

    result = await ToolRegistry([says]).call(ToolCall("says", {}), count=count)
    assert not result.ok
    assert SECRET in result.failure


async def test_cancellation_from_outside_propagates_and_the_tool_cleans_up() -> None:
    events: list[str] = []

    @tool
    async def waits() -> str:
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
    @tool
    def sleeps() -> str:
        time.sleep(0.1)
        return threading.current_thread().name

    registry = ToolRegistry([sleeps])
    began = time.perf_counter()
    results = await asyncio.gather(*(registry.call(ToolCall("sleeps", {})) for _ in range(8)))
    assert time.perf_counter() - began < 0.7
    assert threading.current_thread().name not in {result.text for result in results}


async def test_every_call_knows_its_episode() -> None:
    @tool
    def plain() -> str:
        return current_episode()

    @tool
    async def later() -> str:
        await asyncio.sleep(0.001)
        return await asyncio.create_task(asyncio.sleep(0, current_episode()))

    registry = ToolRegistry([plain, later])
    names = [f"episode-{n}" for n in range(20)]
    for name in ("plain", "later"):
        results = await asyncio.gather(*(registry.call(ToolCall(name, {}), episode_id=each) for each in names))
        assert [result.text for result in results] == names
    assert current_episode() == ""


def test_the_plain_face_works_without_an_event_loop() -> None:
    @tool
    async def later(x: int) -> int:
        await asyncio.sleep(0.001)
        return x + 1

    assert ToolRegistry([later]).execute_tool("later", x=1) == (True, 2)
    assert ToolRegistry([fine]).execute_tool("fine") == (True, "fine 1")


async def test_the_plain_face_works_inside_an_event_loop_and_inside_a_tool() -> None:
    registry = ToolRegistry([fine])

    @registry.register
    @tool
    async def outer() -> str:
        return registry.execute_tool("fine", x=3)[1]

    assert registry.execute_tool("outer") == (True, "fine 3")
    assert (await registry.call(ToolCall("outer", {}))).text == "fine 3"


def test_an_argument_may_be_called_name() -> None:
    @tool
    def greet(name: str, self: str = "") -> str:
        return f"Hello {name}"

    assert ToolRegistry([greet]).execute_tool("greet", name="Ann") == (True, "Hello Ann")


def test_names_definitions_and_lookup() -> None:
    def plain(x: int) -> int:
        """A plain function."""
        return x

    registry = ToolRegistry([fine])
    registered = registry.register(plain)
    assert registry.names == ["fine", "plain"]
    assert [each.description for each in registry.definitions()] == ["", "A plain function."]
    assert registry.get("plain") is registered
    assert registry.get("none") is None
    assert "fine" in registry
    assert len(registry) == 2
    registry.remove("fine")
    registry.remove("fine")
    assert registry.names == ["plain"]


def test_what_cannot_be_registered() -> None:
    class Odd(Tool):
        def execute(self) -> str:
            return ""

    registry = ToolRegistry([fine])
    with pytest.raises(ConfigError, match="already a tool 'fine'"):
        registry.register(fine)
    with pytest.raises(ConfigError, match=r"register\(Odd\(\)\)"):
        registry.register(Odd)
    with pytest.raises(ConfigError, match="cannot be a tool's name"):
        registry.register(tool(name="<|im_start|>")(lambda: 1))


async def test_a_trivial_async_tool_costs_little() -> None:
    @tool
    async def add(a: int, b: int) -> str:
        return str(a + b)

    registry = ToolRegistry([add])
    best = 1.0
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(100):
            await registry.call(ToolCall("add", {"a": 1, "b": 2}), episode_id="e")
        best = min(best, (time.perf_counter() - began) / 100)
    assert best < 100e-6
