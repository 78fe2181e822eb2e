"""Runs the checks of an environment: all of them one after another, or briefly, before an evaluation."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing

from turnsmith.check.environment.checks.repeats import check_briefly, check_interleaved
from turnsmith.check.environment.opening import check_opening
from turnsmith.check.environment.overlap import disturbed_in, settled
from turnsmith.check.environment.subject import CannotPlay, EnvironmentCheck, Subject
from turnsmith.check.finding import Finding, Result
from turnsmith.concurrency.loop_thread import LoopThread
from turnsmith.env.asking import NO_EPISODE
from turnsmith.env.isolation.pool import close_workers
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import InternalError
from turnsmith.records.run_warnings import RunWarning

SECONDS = 10.0
"""Longest time for the check before an evaluation; if it takes longer, the environment is evaluated as it is."""
_NOTHING_OPENS = Finding("skipped", "No episode opens.")


async def run_checks(
    subject: Subject,
    checks: Sequence[EnvironmentCheck],
    show: Callable[[Result], None] = lambda result: None,
    begin: Callable[[EnvironmentCheck], None] = lambda check: None,
    seconds: float = math.inf,
) -> list[Result]:
    """Run the checks in order. A check that raises has failed, and the others run all the same.

    If no episode opens, that is the first result, and the checks that need an episode are skipped.

    Args:
        subject: What is checked.
        checks: The checks to run.
        show: Called with each result as soon as it is known.
        begin: Called before each check.
        seconds: Longest time for all of them, once an episode has opened; a check that takes longer is given up.
    """
    end = time.monotonic() + seconds
    results: list[Result] = []

    def add(check: EnvironmentCheck, finding: Finding, began: float) -> None:
        results.append(Result(check, finding, time.perf_counter() - began))
        show(results[-1])

    opens: bool | None = None
    try:
        for check in checks:
            begin(check)
            began = time.perf_counter()
            if check.plays and opens is None:
                finding = await _run(check_opening, subject)
                opens = finding.status == "passed"
                if not opens:
                    add(check_opening, finding, began)
                end = time.monotonic() + seconds  # what the environment imports, it imports once
            try:
                async with asyncio.timeout(end - time.monotonic() if seconds < math.inf else None):
                    add(check, _NOTHING_OPENS if check.plays and not opens else await _run(check, subject), began)
            except TimeoutError:
                add(check, Finding("skipped", f"There was no time left after {seconds:g} s (--seconds)."), began)
    finally:
        await close_workers()
    return results


async def _run(check: EnvironmentCheck, subject: Subject) -> Finding:
    try:
        return await check(subject)
    except (InternalError, CannotPlay):
        raise  # this says nothing about the environment
    except Exception as error:  # noqa: BLE001  (a check that breaks is a failed check)
        if NO_EPISODE in str(error):
            return Finding("skipped", "The environment asks another player, and the check plays without an episode.")
        return Finding.of_error(error)


def settle(subject: Subject) -> tuple[EnvironmentSpec, RunWarning | None]:
    """Give each environment a worker process if they would disturb each other; also return a warning, if there is one.

    Raises:
        EnvironmentFailure: They disturb each other, and worker processes do not prevent it.
    """

    async def check_and_close() -> Finding | None:
        try:
            return await asyncio.wait_for(check_briefly(subject), SECONDS)
        except TimeoutError:
            return None
        finally:
            await close_workers()

    with closing(LoopThread("turnsmith-check")) as loop:
        finding = loop.run(check_and_close())
    environment = settled(subject.environment, disturbed_in(subject))
    if finding is None or finding.status != "warning":
        return environment, None
    return environment, RunWarning("check_disturbance", 0, finding.saw, check_interleaved.why, finding.fix)
