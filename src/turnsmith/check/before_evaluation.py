"""Before an evaluation: whether its episodes would disturb each other, and where its environments then run."""

from __future__ import annotations

import asyncio
from contextlib import closing

from turnsmith.check.checks.interleaved import INTERLEAVED, check_briefly
from turnsmith.check.finding import Finding
from turnsmith.check.overlap import settled
from turnsmith.check.subject import Subject
from turnsmith.env.isolation.pool import close_workers
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.loop_thread import LoopThread
from turnsmith.records.run_warnings import RunWarning

SECONDS = 10.0
"""This may take so long; an environment for which that is not enough is evaluated as it is."""


def settle(subject: Subject) -> tuple[EnvironmentSpec, RunWarning | None]:
    """The environment, with a worker process for each if they disturb each other otherwise, and what is to be said.

    Raises:
        EnvironmentFailure: They disturb each other, and nothing is to be done about it.
    """

    async def look() -> Finding | None:
        try:
            return await asyncio.wait_for(check_briefly(subject), SECONDS)
        except TimeoutError:
            return None
        finally:
            await close_workers()

    with closing(LoopThread("turnsmith-check")) as loop:
        finding = loop.run(look())
    environment = settled(subject.environment, [one.get("disturbed") for one in subject.cache.get("overlaps", [])])
    if finding is None or finding.status != "warning":
        return environment, None
    return environment, RunWarning("check_disturbance", 0, finding.saw, INTERLEAVED.why, finding.fix)
