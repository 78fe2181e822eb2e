"""The thread pool: calls hold nobody up, time limits count the work alone, and threads survive whatever is raised."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import closing
from typing import Any

import pytest
import uvloop

from turnsmith.concurrency.environment_threads import EnvironmentThreads
from turnsmith.concurrency.loop_thread import LoopThread, run_here
from turnsmith.concurrency.threads import ThreadPool
from turnsmith.config import EnvironmentConfig
from turnsmith.env import EnvironmentHost, EnvironmentSpec
from turnsmith.env.agent import CommandAgent


def raise_it(error: BaseException) -> None:
    raise error


async def test_a_call_runs_off_the_event_loop_and_does_not_hold_it_up() -> None:
    pool = ThreadPool(limit=2)
    assert await pool.run(threading.get_ident) != threading.get_ident()
    release = threading.Event()
    call = pool.start(release.wait, 10)
    await asyncio.sleep(0.01)
    assert call.is_running
    release.set()  # the event loop runs on, or this would never come
    assert await call.wait() is True
    assert not call.is_running


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

    with pytest.raises(seen):
        await pool.run(fail)
    assert await pool.run(int) == 0, "the thread is gone"


async def test_a_time_limit_counts_the_call_and_not_the_queue_before_it() -> None:
    pool = ThreadPool(limit=1)
    block = pool.start(time.sleep, 0.3)
    assert await pool.run(int, limit=0.1) == 0, "it waited for a thread for longer than its limit"
    await block.wait()
    release = threading.Event()
    call = pool.start(release.wait, 30)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        await call.wait(0.1)
    assert 0.1 <= time.monotonic() - began < 20
    assert call.is_running, "a thread cannot be stopped"
    release.set()
    assert await call.wait() is True


async def test_cancelling_the_waiter_leaves_the_call_alone() -> None:
    pool = ThreadPool(limit=1)
    release = threading.Event()
    call = pool.start(release.wait, 10)
    waiter = asyncio.ensure_future(call.wait())
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.wait((waiter,))
    assert call.is_running
    release.set()
    assert await call.wait() is True


async def test_a_call_that_was_given_up_in_the_queue_is_never_made() -> None:
    pool, calls = ThreadPool(limit=1), list[int]()
    release = threading.Event()
    block = pool.start(release.wait, 10)
    waiter = asyncio.ensure_future(pool.run(calls.append, 1))
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.wait((waiter,))
    release.set()
    await block.wait()
    assert await pool.run(int) == 0
    assert calls == []


async def test_a_failure_that_nobody_waits_for_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    call = ThreadPool(limit=1).start(raise_it, ValueError("no"))
    while call.is_running:
        await asyncio.sleep(0.001)
    del call
    assert caplog.text == ""


def test_a_forked_child_ends_with_its_call() -> None:
    code = """
import asyncio, os, sys
from turnsmith.concurrency.threads import ThreadPool, shared_threads
pool = ThreadPool(limit=1)
async def main():
    forked = await pool.run(os.fork)
    assert os.waitpid(forked, 0)[1] == 0, "the child left the call with an error"
    assert await pool.run(int) == 0
asyncio.run(main())
before = shared_threads()
child = os.fork()
if child == 0:
    os._exit(int(shared_threads() is before))
assert os.waitpid(child, 0)[1] == 0, "threads do not survive a fork"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


async def test_calls_one_after_another_share_a_thread() -> None:
    pool = ThreadPool(limit=4)
    assert len({await pool.run(threading.get_ident) for _ in range(4)}) == 1


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


def test_no_call_is_lost_between_threads_and_event_loops() -> None:
    pool = ThreadPool(limit=16)

    async def square_all() -> int:
        return sum(await asyncio.gather(*(pool.run(pow, number, 2, limit=60) for number in range(2000))))

    sums = list[int]()
    loops = [threading.Thread(target=lambda: sums.append(asyncio.run(square_all()))) for _ in range(3)]
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join()
    assert sums == [sum(number * number for number in range(2000))] * 3


async def test_an_event_loop_is_woken_once_for_many_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, wakes = asyncio.get_running_loop(), list[object]()
    call_soon = loop.call_soon_threadsafe

    def count(*args: Any, **kwargs: Any) -> Any:
        wakes.append(args)
        return call_soon(*args, **kwargs)

    monkeypatch.setattr(loop, "call_soon_threadsafe", count)
    pool = ThreadPool(limit=50)
    calls = [pool.start(pow, number, 2) for number in range(50)]
    time.sleep(0.5)  # on the event loop: it cannot look at any of them meanwhile
    assert [await call.wait() for call in calls] == [number**2 for number in range(50)]
    assert len(wakes) == 1


def test_a_call_that_outlives_its_event_loop_does_not_keep_it_alive() -> None:
    pool, release = ThreadPool(limit=1), threading.Event()
    loops = list[weakref.ref[asyncio.AbstractEventLoop]]()

    async def start() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        pool.start(release.wait, 10)

    asyncio.run(start())
    release.set()
    for _ in range(1000):
        gc.collect()
        if loops[0]() is None:
            break
        time.sleep(0.01)
    assert loops[0]() is None


@pytest.fixture
def uvloop_policy() -> Iterator[None]:
    """As in Ray's workers where uvloop is installed."""
    policy = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    yield
    asyncio.set_event_loop_policy(policy)


async def start_process() -> int | None:
    return await (await asyncio.create_subprocess_exec("true")).wait()


async def run_program(threads: EnvironmentThreads) -> int:
    host = EnvironmentHost(EnvironmentSpec(CommandAgent, EnvironmentConfig(command="true")), threads)
    await host.reset()
    await host.step('{"url": "http://127.0.0.1:9/v1", "key": "k"}')
    await host.close()
    return 0


async def from_an_agent_program() -> Iterable[Awaitable[int | None]]:
    threads = EnvironmentThreads(limit=64)
    return [run_program(threads) for _ in range(64)]


async def from_user_code_that_runs_a_loop() -> Iterable[Awaitable[int | None]]:
    pool = ThreadPool(limit=64)
    return [pool.run(lambda: asyncio.run(start_process())) for _ in range(64)]


async def on_a_loop_of_ours() -> int | None:
    with closing(LoopThread("test")) as loop:
        return await loop.run_async(start_process())


async def from_loops_of_ours() -> Iterable[Awaitable[int | None]]:
    return [on_a_loop_of_ours() for _ in range(64)]


async def from_other_threads() -> Iterable[Awaitable[int | None]]:
    return [asyncio.to_thread(run_here, start_process()) for _ in range(64)]


STARTS = [from_an_agent_program, from_user_code_that_runs_a_loop, from_loops_of_ours, from_other_threads]


@pytest.mark.parametrize("calls", STARTS)
@pytest.mark.usefixtures("uvloop_policy")
def test_64_threads_start_processes_at_once_where_uvloop_is_installed(
    calls: Callable[[], Coroutine[Any, Any, Iterable[Awaitable[int | None]]]],
) -> None:
    async def start_all() -> list[int | None]:
        return await asyncio.gather(*await calls())

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # Ray's own loop, which is there before ours
        assert runner.run(start_all()) == [0] * 64
