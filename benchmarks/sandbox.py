"""The sandbox for model-written code: what it adds to a cold start, and how long a call takes when it is warm.

    python -m benchmarks.sandbox [--quick]

Cold: the time from starting the process to having its output, with the sandbox over without it: the same interpreter,
the same options, the same lines inside, the same program. Pairs are taken one right after the other; the median of
their ratios counts, or the ratio of the least times if that is lower: other work raises one of the two at a time. For
comparison also over `python -I -S -c program`, which sets no limits and waits for no program.
Warm: `await run_python(...)` and a call through a `ToolRegistry`, when a process waits; a pause before each call lets
the pool refill, as the model's own turn does. Also without a pause, where starting new processes takes the same cores.
Exits 1 if cold is over 1.5 or the median of warm over 2 ms. These are times on the clock: where other work keeps all
cores busy they show how long a process waits for its turn. `chrt -f 10 python -m benchmarks.sandbox` takes its turn.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

from benchmarks import results

from turnsmith.tools.definition import ToolCall
from turnsmith.tools.registry import ToolRegistry
from turnsmith.tools.sandbox import PythonTool, SandboxLimits, run_python
from turnsmith.tools.sandbox.command import Command, command_for
from turnsmith.tools.sandbox.process import SandboxProcess
from turnsmith.tools.sandbox.session import run_program

COLD, WARM = 1.5, 0.002
PROGRAM = "print(sum(range(10)))"
LIMITS = SandboxLimits()


async def cold(command: Command) -> float:
    began = time.perf_counter()
    process = SandboxProcess.start(command)
    try:
        result = await run_program(process, PROGRAM, LIMITS)
    finally:
        took = time.perf_counter() - began
        process.kill()
        process.reap()
    assert result.output == "45\n"
    return took


def plain() -> float:
    began = time.perf_counter()
    done = subprocess.run([sys._base_executable, "-I", "-S", "-c", PROGRAM], stdout=subprocess.PIPE, check=True)  # type: ignore[attr-defined]
    assert done.stdout == b"45\n"
    return time.perf_counter() - began


async def cold_ratios(pairs: int) -> float:
    boxed, bare = command_for(LIMITS), command_for(LIMITS, is_sandboxed=False)
    rows: list[tuple[float, float, float]] = []
    for number in range(pairs + 2):
        # In turns, so that neither always comes second.
        both = [await cold(each) for each in ((boxed, bare) if number % 2 else (bare, boxed))]
        row = (*(both if number % 2 else both[::-1]), plain())
        rows += [row] if number >= 2 else []
    with_box, without, simplest = (statistics.median(column) * 1e3 for column in zip(*rows, strict=True))
    median = statistics.median(row[0] / row[1] for row in rows)
    least = min(row[0] for row in rows) / min(row[1] for row in rows)
    over_plain = statistics.median(row[0] / row[2] for row in rows)
    print(f"cold: {with_box:.1f} ms with the sandbox, {without:.1f} ms without")
    print(f"      ratio {median:.2f}, of the least {least:.2f}")
    print(f"      python -I -S -c takes {simplest:.1f} ms, ratio {over_plain:.2f}")
    return min(median, least)


async def warm(name: str, call: Callable[[], Awaitable[object]], calls: int, pause: float) -> float:
    times: list[float] = []
    for _ in range(calls):
        await asyncio.sleep(pause)
        began = time.perf_counter()
        await call()
        times.append(time.perf_counter() - began)
    times.sort()
    median, worse = statistics.median(times), times[int(len(times) * 0.95)]
    print(f"warm, {name}: median {median * 1e3:.2f} ms, 95% below {worse * 1e3:.2f} ms, {calls} calls")
    return median


async def measure(*, is_quick: bool, is_recorded: bool) -> list[str]:
    pairs, calls = (15, 20) if is_quick else (51, 200)
    ratio = await cold_ratios(pairs)
    registry = ToolRegistry([PythonTool(LIMITS)])
    await run_python(PROGRAM)
    direct = await warm("run_python", lambda: run_python(PROGRAM), calls, 0.1)
    through = await warm("registry", lambda: registry.call(ToolCall("python", {"code": PROGRAM})), calls, 0.1)
    await warm("run_python without a pause", lambda: run_python(PROGRAM), calls, 0.0)
    missed = [f"cold start ratio {ratio:.2f} > {COLD}"] * (ratio > COLD)
    slowest = max(direct, through)
    results.record("sandbox", {"cold": ratio, "warm_ms": slowest * 1e3}, is_wanted=is_recorded)
    return missed + [f"warm call {slowest * 1e3:.2f} ms > {WARM * 1e3:g} ms"] * (slowest > WARM)


def main() -> None:
    """Measure, and say whether it holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds; for a look, not for a claim")
    results.add_option(parser)
    options = parser.parse_args()
    missed = asyncio.run(measure(is_quick=options.quick, is_recorded=options.json))
    print("missed: " + "; ".join(missed) if missed else f"holds: cold <= {COLD}x, warm < {WARM * 1e3:g} ms")
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
