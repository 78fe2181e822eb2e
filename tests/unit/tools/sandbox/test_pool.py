"""The pool of waiting interpreters: ready ahead of time, used once, never too many, never lost."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from turnsmith.tools.sandbox import SandboxLimits, run_python
from turnsmith.tools.sandbox.command import command_for
from turnsmith.tools.sandbox.pool import SandboxPool
from turnsmith.tools.sandbox.process import SandboxProcess
from turnsmith.tools.sandbox.session import run_program

LIMITS = SandboxLimits()


def start() -> SandboxProcess:
    return SandboxProcess.start(command_for(LIMITS))


@pytest.fixture
def pool() -> Iterator[SandboxPool]:
    pool = SandboxPool(start, idle=1, limit=2)
    yield pool
    pool.close()


async def use(pool: SandboxPool, code: str = "print(1)") -> tuple[int, str]:
    process = await pool.acquire()
    try:
        return process.popen.pid, (await run_program(process, code, LIMITS)).output
    finally:
        pool.release(process)


async def test_every_program_gets_a_process_of_its_own(pool: SandboxPool) -> None:
    used = [await use(pool) for _ in range(5)]
    assert {output for _, output in used} == {"1\n"}
    assert len({pid for pid, _ in used}) == 5


async def test_more_callers_than_places_wait_for_their_turn(pool: SandboxPool) -> None:
    began = time.perf_counter()
    used = await asyncio.gather(*[use(pool, "import time; time.sleep(0.1); print(1)") for _ in range(6)])
    assert [output for _, output in used] == ["1\n"] * 6
    assert time.perf_counter() - began > 0.3  # three rounds of two


async def test_caller_who_gives_up_takes_no_place(pool: SandboxPool) -> None:
    held = [await pool.acquire(), await pool.acquire()]
    waiting = [asyncio.create_task(pool.acquire()) for _ in range(3)]
    await asyncio.sleep(0.02)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for process in held:
        pool.release(process)
    assert [(await use(pool))[1] for _ in range(3)] == ["1\n"] * 3


async def test_process_that_died_while_it_waited_is_not_used(pool: SandboxPool) -> None:
    await use(pool)
    while not pool._idle:
        await asyncio.sleep(0.01)
    dead = pool._idle[0]
    dead.popen.kill()
    dead.popen.wait()
    pid, output = await use(pool)
    assert output == "1\n"
    assert pid != dead.popen.pid


async def test_failing_start_is_told_and_the_next_caller_tries_again() -> None:
    broken = True

    def start_or_fail() -> SandboxProcess:
        if broken:
            raise OSError("no processes left")
        return start()

    pool = SandboxPool(start_or_fail, idle=1, limit=2)
    ended = await asyncio.gather(*[use(pool) for _ in range(3)], return_exceptions=True)
    assert [str(error) for error in ended] == ["no processes left"] * 3
    broken = False
    assert (await use(pool))[1] == "1\n"
    pool.close()


def test_event_loops_share_one_pool() -> None:
    assert [asyncio.run(run_python(f"print({n})")).output for n in range(4)] == ["0\n", "1\n", "2\n", "3\n"]


def test_forked_process_has_a_pool_of_its_own() -> None:
    code = """
import asyncio, os, time
from turnsmith.tools.sandbox import run_python
def say(text): print(text, asyncio.run(run_python(f"print('{text}')")).output, end="", flush=True)
say("before")
time.sleep(0.1)
child = os.fork()
say("parent" if child else "child")
if not child: os._exit(0)
os.waitpid(child, 0)
say("after")
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60)
    assert sorted(done.stdout.split()) == ["after", "after", "before", "before", "child", "child", "parent", "parent"]
