"""The pool of threads: quick calls are waited for, slow ones hold nobody up, and timers always get their turn."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from turnsmith.threads import ThreadPool


def raise_it(error: BaseException) -> None:
    raise error


async def warm(pool: ThreadPool) -> None:
    """Start its first thread; the event loop has its turn meanwhile, so that the next quick call is waited for."""
    await pool.run(int)


async def test_a_quick_call_is_done_before_the_event_loop_has_its_turn_and_off_its_thread() -> None:
    pool = ThreadPool(limit=2)
    waited_for = 0
    for _ in range(50):
        await warm(pool)
        call = pool.start(threading.get_ident)
        waited_for += call.done()
        assert await call != threading.get_ident()
    assert waited_for, "no call was ever waited for"


async def test_a_slow_call_does_not_hold_up_the_event_loop() -> None:
    pool = ThreadPool(limit=2)
    for _ in range(5):
        await warm(pool)
        release = threading.Event()
        call = pool.start(release.wait, 10)
        assert not call.done()
        release.set()  # the event loop runs on, or this would never come
        assert await call is True


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize(
    ("raised", "seen"),
    [(ValueError("no"), ValueError), (SystemExit(3), RuntimeError), (StopIteration(), RuntimeError)],
)
async def test_what_a_call_raises_comes_out_of_its_future(
    quick: bool, raised: BaseException, seen: type[Exception]
) -> None:
    pool = ThreadPool(limit=1)

    def fail() -> None:
        time.sleep(0.0 if quick else 0.01)
        raise_it(raised)

    await warm(pool)
    with pytest.raises(seen):
        await pool.run(fail)
    assert await pool.run(int) == 0, "the thread is gone"


async def test_quick_calls_one_after_another_leave_timers_their_turn() -> None:
    pool = ThreadPool(limit=1)
    calls = 0

    async def call_for_ever() -> None:
        nonlocal calls
        while True:
            await pool.run(int)
            calls += 1

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(call_for_ever(), 0.1)
    assert calls > 10


async def test_others_that_are_ready_are_never_kept_waiting() -> None:
    pool = ThreadPool(limit=1)
    await warm(pool)
    asyncio.get_running_loop().call_soon(lambda: None)
    assert not pool.start(int).done()


async def test_never_more_calls_at_once_than_threads() -> None:
    pool = ThreadPool(limit=3)
    running = most = 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.002)
        with lock:
            running -= 1

    await asyncio.gather(*(pool.run(work) for _ in range(20)))
    assert most == 3


def test_a_call_that_outlives_its_event_loop_harms_nobody() -> None:
    pool = ThreadPool(limit=1)
    release = threading.Event()

    async def start() -> Any:
        return pool.start(release.wait, 10)

    asyncio.run(start())
    release.set()
    assert asyncio.run(pool.run(int)) == 0
