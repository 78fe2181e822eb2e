"""What a step costs where environments run, beside a call of a Ray actor, and 1000 environments in one worker.

The environment is a text one whose own step takes a few microseconds, so that what is measured is the way there and
back. All ways are measured in the same run, in turns; shown are the least and the median of all rounds, as wall-clock
time for one step, and what it is over a step on the event loop itself.

    loop      on the event loop, no thread and no process between
    thread    off the event loop, in a thread of this process
    process   in a worker process, over a socket
    Ray       `await actor.step.remote(action)`: an async actor that holds the environments itself
    pipe      two bare processes that send each other 64 bytes over a socket: what the machine takes for that alone

A busy machine shows in `pipe`: the other numbers are only as good as that one is small. Exits 1 if a step in a process
costs more than `LIMIT` times the pipe over a step in the loop, with 64 environments at a time. With one at a time it
waits for its turn on a busy machine several times a step, so that is not judged.

Run: python -m benchmarks.isolation [--quick] [--no-ray]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import psutil
from tests.e2e.marked_processes import command_of

from turnsmith import BaseEnvironment, EnvironmentConfig
from turnsmith.env.host import open_host
from turnsmith.env.isolation.pool import close_workers, isolation_status
from turnsmith.env.spec import EnvironmentSpec

WORDS = "the parcel of your order is late because a van broke down near Lyon and nobody told us in time so we ask"
JUDGED, LIMIT = 64, 12.0
"""Environments at a time, and what a step in a process may then cost over one in the loop, in `pipe`s."""
Step = Callable[[int, str], Awaitable[Any]]
"""A step of one of the environments."""


class Desk(BaseEnvironment):
    """Answers in a sentence."""

    def reset(self, seed: int = 0) -> str:
        self.asked = seed
        return WORDS

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self.asked += 1
        return f"{self.asked}: {WORDS}", 0.5, False, {"asked": self.asked}


class DeskActor:
    """The same behind a Ray actor."""

    def __init__(self, environments: int) -> None:
        self.desks = [Desk() for _ in range(environments)]
        for desk in self.desks:
            desk.reset()

    async def step(self, place: int, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return self.desks[place].step(action)


def spec(mode: str, workers: int = 1) -> EnvironmentSpec:
    return EnvironmentSpec.of(Desk, EnvironmentConfig(isolation=mode, isolation_workers=workers, max_steps=10**9))


async def opened(mode: str, environments: int) -> Step:
    """Environments of a mode, ready to step."""
    hosts = [open_host(spec(mode)) for _ in range(environments)]
    for host in hosts:
        await host.reset()
    return lambda place, action: hosts[place].step(action)


def on_ray(environments: int) -> Step:
    import ray

    if not ray.is_initialized():
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    actor = ray.remote(DeskActor).options(num_cpus=0, max_concurrency=1000).remote(environments)
    return lambda place, action: actor.step.remote(place, action)


async def cost(step: Step, at_once: int, steps: int) -> float:
    """Microseconds of wall-clock time for a step."""

    async def play(place: int) -> None:
        for _ in range(steps // at_once):
            await step(place, "Where is my order 1007?")

    began = time.perf_counter()
    await asyncio.gather(*map(play, range(at_once)))
    return (time.perf_counter() - began) / (steps // at_once * at_once) * 1e6


def pipe(steps: int) -> float:
    """Microseconds for there and back between two bare processes."""
    here, there = socket.socketpair()
    child = os.fork()
    if child == 0:
        here.close()
        while data := there.recv(64):
            there.send(data)
        os._exit(0)
    there.close()
    with here:
        began = time.perf_counter()
        for _ in range(steps):
            here.send(bytes(64))
            here.recv(64)
        taken = (time.perf_counter() - began) / steps * 1e6
    os.waitpid(child, 0)
    return taken


async def compare(ways: dict[str, Step], at_once: int, steps: int, rounds: int) -> dict[str, float]:
    """Measure all ways in turns and print a line for each; returns the least of each over the loop's, and `pipe`."""
    costs: dict[str, list[float]] = {name: [] for name in ways}
    bare: list[float] = []
    for _ in range(rounds):
        bare.append(pipe(1000))
        for name, step in ways.items():
            few = steps if name in ("loop", "thread") else max(at_once, steps // 4)
            costs[name].append(await cost(step, at_once, few))
    loop = costs["loop"]
    print(f"{at_once} environments at a time, wall-clock us for a step")
    over: dict[str, float] = {}
    for name, found in costs.items():
        over[name] = min(found) - min(loop)
        median = statistics.median(found) - statistics.median(loop)
        print(
            f"  {name:8} least {min(found):7.0f}   median {statistics.median(found):7.0f}   "
            f"over the loop: {over[name]:6.0f} of the least, {median:6.0f} of the medians",
            flush=True,
        )
    print(f"  pipe     least {min(bare):7.0f}   median {statistics.median(bare):7.0f}")
    return over | {"pipe": min(bare)}


async def thousand(environments: int = 1000) -> None:
    """So many environments in one worker process."""
    hosts = [open_host(spec("process")) for _ in range(environments)]
    began = time.perf_counter()
    await asyncio.gather(*(host.reset() for host in hosts))
    reset = time.perf_counter() - began
    began = time.perf_counter()
    for _ in range(3):
        await asyncio.gather(*(host.step("Where?") for host in hosts))
    stepped = (time.perf_counter() - began) / (3 * environments) * 1e6
    workers = [one for one in psutil.Process().children(recursive=True) if "supervisor" in command_of(one)]
    memory = sum(one.memory_info().rss for one in workers) / 2**20
    status = isolation_status()
    assert (status.workers, status.environments) == (1, environments), status
    print(
        f"{environments} environments in one worker: all reset in {reset:.2f} s, {stepped:.0f} us a step with all of "
        f"them at a time, {memory:.0f} MiB for worker and supervisor"
    )
    await asyncio.gather(*(host.close() for host in hosts))


async def start_up() -> None:
    began = time.perf_counter()
    host = open_host(spec("process"))
    await host.reset()
    print(f"first reset, with the start of its worker: {(time.perf_counter() - began) * 1000:.0f} ms")
    await host.close()


def misses(over: dict[str, float]) -> list[str]:
    """What is over its limit, of the microseconds over a step in the loop."""
    ratio = over["process"] / over["pipe"]
    return [f"a step in a process: {ratio:.1f} > {LIMIT} times the pipe"] * (ratio > LIMIT)


async def measure(options: argparse.Namespace) -> list[str]:
    """Measure everything; returns what is over its limit."""
    rounds, steps = (5, 2000) if options.quick else (9, 8000)
    await start_up()
    missed: list[str] = []
    for at_once in (1, JUDGED):
        ways = {mode: await opened(mode, at_once) for mode in ("loop", "thread", "process")}
        if not options.no_ray:
            ways["Ray"] = on_ray(at_once)
        for step in ways.values():
            await cost(step, at_once, 5 * at_once)
        over = await compare(ways, at_once, steps, rounds)
        missed += misses(over) if at_once == JUDGED else []
        beside = f", {over['Ray'] / over['process']:.1f} times less than a Ray actor" if "Ray" in over else ""
        ratio = over["process"] / over["pipe"]
        print(f"  a process costs {over['process']:.0f} us over the loop, {ratio:.1f} times the pipe{beside}")
    await close_workers()
    await thousand()
    return missed


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps: under a minute")
    parser.add_argument("--no-ray", action="store_true", help="without Ray, which takes seconds to start")
    options = parser.parse_args()
    missed = asyncio.run(measure(options))
    print("missed: " + "; ".join(missed) if missed else f"holds: at most {LIMIT} times the pipe")
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
