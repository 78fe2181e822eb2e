"""A call to vLLM's engine is waited for as long as the engine is there."""

from __future__ import annotations

import asyncio

import pytest

from turnsmith.errors import EngineFailure
from turnsmith.inference.engines.vllm_process import answer_of


async def unanswered(cancelled: asyncio.Event) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        cancelled.set()


async def test_an_engine_that_has_ended_is_not_waited_for() -> None:
    cancelled = asyncio.Event()
    with pytest.raises(EngineFailure, match="vLLM's engine has ended: killed, or out of memory"):
        await asyncio.wait_for(answer_of(unanswered(cancelled), lambda: True), 20)
    await asyncio.wait_for(cancelled.wait(), 20)


async def test_a_call_that_is_given_up_does_not_go_on() -> None:
    cancelled = asyncio.Event()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(answer_of(unanswered(cancelled), lambda: False), 0.2)
    await asyncio.wait_for(cancelled.wait(), 20)


async def test_an_engine_that_takes_its_time_is_waited_for() -> None:
    assert await asyncio.wait_for(answer_of(asyncio.sleep(1.2, "done"), lambda: False), 20) == "done"


async def test_an_answer_counts_though_the_engine_has_ended_since() -> None:
    assert await answer_of(asyncio.sleep(0, "done"), lambda: True) == "done"


async def test_an_error_is_raised() -> None:
    async def refuses() -> None:
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        await answer_of(refuses(), lambda: False)
