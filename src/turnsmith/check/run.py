"""Runs the checks one after another."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from turnsmith.check.finding import Check, Finding
from turnsmith.check.opening import nothing_opens
from turnsmith.check.subject import Subject
from turnsmith.env.isolation.pool import close_workers
from turnsmith.errors import TurnsmithError


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A check, what it found, and how long it took."""

    check: Check
    finding: Finding
    seconds: float


async def run_checks(
    subject: Subject,
    checks: Sequence[Check],
    show: Callable[[CheckResult], None] = lambda result: None,
    begin: Callable[[Check], None] = lambda check: None,
) -> list[CheckResult]:
    """Run the checks in order; one that breaks is a failed one, and does not keep the others from running.

    Args:
        subject: What is checked.
        checks: The checks to run.
        show: Called with each result as soon as it is there.
        begin: Called before each check.
    """
    results: list[CheckResult] = []
    try:
        for check in checks:
            begin(check)
            began = time.perf_counter()
            finding = await _run(check, subject)
            results.append(CheckResult(check, finding, time.perf_counter() - began))
            show(results[-1])
    finally:
        await close_workers()
    return results


async def _run(check: Check, subject: Subject) -> Finding:
    try:
        if check.plays:
            if "nothing opens" not in subject.cache:
                subject.cache["nothing opens"] = await nothing_opens(subject)
                if (finding := subject.cache["nothing opens"]) is not None:
                    return finding
            if subject.cache["nothing opens"] is not None:
                return Finding("skipped", "No episode opens.")
        return await check.function(subject)
    except TurnsmithError as error:
        return Finding("failed", str(error), "See the message: the check could not be run.")
    except Exception as error:  # noqa: BLE001  (a check that breaks is a failed check)
        where = traceback.extract_tb(error.__traceback__)[-1]
        saw = f"The check itself broke: {type(error).__name__}: {error} (line {where.lineno} of {where.filename})."
        return Finding("failed", saw, "Please report this.")
