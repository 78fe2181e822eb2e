"""A `Clock` counts work alone, and cancels only what it limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from turnsmith.concurrency.clocks import Bottleneck, Clock, OutOfTime, paused, waiting
from turnsmith.concurrency.threads import ThreadPool

DESK = Bottleneck("a desk", "buy one")


async def run(clock: Clock, work: Callable[[], Awaitable[None]]) -> None:
    async with clock:
        await work()


async def hang() -> None:
    await asyncio.sleep(30)


async def test_work_past_the_limit_is_out_of_time():
    clock = Clock(0.05)
    with pytest.raises(OutOfTime, match=r"longer than 0\.05 seconds"):
        await run(clock, hang)
    assert clock.expired
    assert asyncio.current_task().cancelling() == 0


async def test_it_goes_off_as_late_as_it_stood_still():
    async def wait_twice_and_hang() -> None:
        for _ in range(2):
            async with waiting(DESK):
                await asyncio.sleep(0.15)
        await hang()

    clock, began = Clock(0.2), time.monotonic()
    with pytest.raises(OutOfTime):
        await run(clock, wait_twice_and_hang)
    assert 0.3 <= clock.waited < 0.45
    assert 0.5 <= time.monotonic() - began < 0.9


async def test_a_pause_longer_than_the_limit_leaves_what_was_left():
    async def work(seconds: float) -> None:
        with paused():
            await asyncio.sleep(0.2)
        await asyncio.sleep(seconds)

    clock = Clock(0.1)
    await run(clock, lambda: work(0.02))
    assert not clock.expired
    assert clock.waited == 0
    with pytest.raises(OutOfTime):
        await run(Clock(0.1), lambda: work(30))


async def test_nested_pauses_count_once():
    async with Clock(0.1) as clock, waiting(DESK):
        with paused():
            await asyncio.sleep(0.08)
        await asyncio.sleep(0.08)
    assert 0.16 <= clock.waited < 0.3


async def test_paused_before_it_is_entered():
    clock = Clock(0.1)
    clock.pause(DESK)
    async with clock:
        await asyncio.sleep(0.15)
        clock.resume(DESK)
        await asyncio.sleep(0.02)
    assert not clock.expired

    async def resume_and_hang() -> None:
        late.resume()
        await hang()

    late = Clock(0.1)
    late.pause()
    with pytest.raises(OutOfTime):
        await run(late, resume_and_hang)


async def test_without_a_limit_it_only_counts():
    async with Clock(None) as clock, waiting(DESK):
        await asyncio.sleep(0.02)
    assert clock.waits[DESK] >= 0.02
    assert not clock.expired


async def test_an_error_and_a_timeout_of_the_work_itself_pass():
    with pytest.raises(KeyError):
        async with Clock(1):
            raise KeyError
    with pytest.raises(TimeoutError) as raised:
        async with Clock(1):
            raise TimeoutError
    assert not isinstance(raised.value, OutOfTime)


async def test_an_error_that_the_work_raises_when_it_is_cancelled_passes():
    async def fail_when_cancelled() -> None:
        try:
            await hang()
        except asyncio.CancelledError:
            raise KeyError from None

    with pytest.raises(KeyError):
        await run(Clock(0.02), fail_when_cancelled)
    assert asyncio.current_task().cancelling() == 0


async def test_cancelled_from_outside_it_stays_cancelled():
    async def work() -> None:
        try:
            await hang()
        except asyncio.CancelledError:
            asyncio.current_task().cancel()  # somebody else, right after the clock
            raise

    clock = Clock(0.02)
    task = asyncio.create_task(run(clock, work))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock.expired
    assert task.cancelled()


async def test_cancelled_before_its_time_is_not_out_of_time():
    task = asyncio.create_task(run(Clock(30), hang))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_inner_one_of_two():
    async with Clock(30) as outer:
        with pytest.raises(OutOfTime, match=r"0\.02"):
            await run(Clock(0.02), hang)
    assert not outer.expired


async def test_stopped_from_another_thread():
    clock = Clock(0.1)
    async with clock:
        await asyncio.to_thread(clock.pause, DESK)
        await asyncio.sleep(0.2)
        await asyncio.to_thread(clock.resume, DESK)
        await asyncio.sleep(0)
    assert clock.waited >= 0.2


async def test_one_timer_however_often_it_stands_still(monkeypatch):
    """A hundred thousand episodes that wait for the engine at every turn would set and cancel millions."""
    loop, timers = asyncio.get_running_loop(), list[asyncio.TimerHandle]()
    call_at = loop.call_at

    def keep(*args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        timers.append(call_at(*args, **kwargs))
        return timers[-1]

    monkeypatch.setattr(loop, "call_at", keep)
    async with Clock(30):
        for _ in range(5):
            with paused():
                pass
        assert [timer.cancelled() for timer in timers] == [False]
    assert all(timer.cancelled() for timer in timers)


async def test_a_call_in_a_thread_has_the_time_that_it_waited_besides():
    async def stand_still() -> None:
        async with waiting(DESK):
            await asyncio.sleep(0.2)

    call = ThreadPool(limit=1).start(lambda: asyncio.run(stand_still()) or time.sleep(0.02) or "done")
    assert await call.wait(0.15) == "done"
    call = ThreadPool(limit=1).start(lambda: asyncio.run(stand_still()) or time.sleep(0.3))
    with pytest.raises(OutOfTime):
        await call.wait(0.15)
