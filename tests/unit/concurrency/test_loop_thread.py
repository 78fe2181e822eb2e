"""Coroutines for one loop, from other threads, other loops, and the loop itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from turnsmith.concurrency.loop_thread import LoopThread, run_blocking, shared_loop
from turnsmith.errors import EngineFailure


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    made = LoopThread("test")
    yield made
    made.close()


async def where() -> str:
    return threading.current_thread().name


async def fail(error: type[BaseException]) -> None:
    raise error


async def test_coroutines_run_in_the_loop_from_any_caller(loop: LoopThread) -> None:
    assert loop.run(where()) == "test"
    assert await loop.run_async(where()) == "test"
    assert await loop.run_async(loop.run_async(where())) == "test"
    assert not loop.is_current


async def test_an_error_reaches_the_caller(loop: LoopThread) -> None:
    with pytest.raises(ZeroDivisionError):
        loop.run(fail(ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        await loop.run_async(fail(ZeroDivisionError))


async def test_a_coroutine_that_cancels_itself_does_not_look_like_a_cancelled_caller(loop: LoopThread) -> None:
    with pytest.raises(EngineFailure, match="call cancelled itself"):
        loop.run(fail(asyncio.CancelledError))
    with pytest.raises(EngineFailure, match="call cancelled itself"):
        await loop.run_async(fail(asyncio.CancelledError))


async def test_cancelling_the_caller_cancels_the_coroutine(loop: LoopThread) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()

    waiting = asyncio.create_task(loop.run_async(work()))
    await asyncio.to_thread(begun.wait, 10)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await asyncio.to_thread(ended.wait, 10)


async def test_close_fails_pending_and_later_calls() -> None:
    loop, calls = LoopThread("test"), []
    waiting = asyncio.create_task(loop.run_async(asyncio.sleep(30)))
    await asyncio.sleep(0)
    await asyncio.to_thread(loop.close, lambda: calls.append("last"))
    loop.close(lambda: calls.append("again"))
    assert calls == ["last"]
    with pytest.raises(EngineFailure, match="closed before the call finished"):
        await waiting
    with pytest.raises(EngineFailure, match="is closed"):
        loop.run(where())


def test_a_blocking_call_inside_the_loop_is_an_error(loop: LoopThread) -> None:
    async def outer() -> str:
        return loop.run(where())

    with pytest.raises(EngineFailure, match="await the async method there"):
        loop.run(outer())


async def test_blocking_calls_may_be_nested() -> None:
    async def outer() -> tuple[str, str]:
        return await where(), run_blocking(where())

    assert shared_loop() is shared_loop()
    assert run_blocking(outer()) == ("turnsmith-shared", "turnsmith-nested")
