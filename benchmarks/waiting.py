"""Many more calls of a plain tool than there are threads: none may time out, and no thread may stand idle.

2,048 calls at once of a tool that takes a second, with a limit of 5 s, in 24 threads: the last one begins after 84 s.
Goodput is the least time that the threads need for the work over the time that it took. Exits 1 if any call timed out,
or if the goodput is below `LEAST`.

Run: python -m benchmarks.waiting [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import math
import time

from benchmarks import results

from turnsmith import ToolRegistry, tool
from turnsmith.concurrency import threads
from turnsmith.tools.definition import ToolCall

CALLS, THREADS = 2048, 24
LEAST = 0.95


def misses(timed_out: int, goodput: float) -> list[str]:
    """What misses its threshold."""
    late = [f"{timed_out} calls timed out while they waited"] if timed_out else []
    return [*late, f"goodput {goodput:.3f} < {LEAST}"] if goodput < LEAST else late


async def measure(seconds: float) -> tuple[int, float]:
    """Make all calls; returns how many failed, and the goodput."""

    @tool(time_limit=5 * seconds)
    def lookup(number: int) -> str:
        """Ask a service."""
        time.sleep(seconds)
        return "ok"

    registry, began = ToolRegistry([lookup]), time.monotonic()
    calls = (registry.call(ToolCall("lookup", {"number": number})) for number in range(CALLS))
    results = await asyncio.gather(*calls)
    ideal = math.ceil(CALLS / THREADS) * seconds
    return sum(not result.ok for result in results), ideal / (time.monotonic() - began)


def main() -> int:
    """Measure, print and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tool that takes a tenth of a second")
    results.add_option(parser)
    options = parser.parse_args()
    seconds = 0.1 if options.quick else 1.0
    threads.shared_threads().limit = THREADS
    timed_out, goodput = asyncio.run(measure(seconds))
    print(f"{CALLS} calls of {seconds:g} s in {THREADS} threads: {timed_out} timed out, goodput {goodput:.3f}")
    figures = {"calls": CALLS, "threads": THREADS, "timed_out": timed_out, "goodput": goodput}
    results.record("waiting", figures, is_wanted=options.json)
    missed = misses(timed_out, goodput)
    print("missed: " + "; ".join(missed) if missed else "ok")
    return bool(missed)


if __name__ == "__main__":
    raise SystemExit(main())
