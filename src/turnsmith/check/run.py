"""Runs the checks one after another."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from turnsmith.check.finding import Check, Finding
from turnsmith.check.opening import OPENING
from turnsmith.check.subject import Subject
from turnsmith.env.isolation.pool import close_workers
from turnsmith.errors import InternalError, TurnsmithError


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A check, what it found, and how long it took."""

    check: Check
    finding: Finding
    seconds: float


_NOTHING_OPENS = Finding("skipped", "No episode opens.")


async def run_checks(
    subject: Subject,
    checks: Sequence[Check],
    show: Callable[[CheckResult], None] = lambda result: None,
    begin: Callable[[Check], None] = lambda check: None,
) -> list[CheckResult]:
    """Run the checks in order; one that breaks is a failed one, and does not keep the others from running.

    If no episode opens, that is the first result, and those that need one are skipped.

    Args:
        subject: What is checked.
        checks: The checks to run.
        show: Called with each result as soon as it is there.
        begin: Called before each check.
    """
    results: list[CheckResult] = []

    def add(check: Check, finding: Finding, began: float) -> None:
        results.append(CheckResult(check, finding, time.perf_counter() - began))
        show(results[-1])

    opens: bool | None = None
    try:
        for check in checks:
            begin(check)
            began = time.perf_counter()
            if check.plays and opens is None:
                finding = await _run(OPENING, subject)
                opens = finding.status == "passed"
                if not opens:
                    add(OPENING, finding, began)
            add(check, _NOTHING_OPENS if check.plays and not opens else await _run(check, subject), began)
    finally:
        await close_workers()
    return results


async def _run(check: Check, subject: Subject) -> Finding:
    try:
        return await check.function(subject)
    except InternalError:
        raise
    except TurnsmithError as error:
        return Finding("failed", str(error), "See the message: the check could not be run.")
    except Exception as error:  # noqa: BLE001  (a check that breaks is a failed check)
        where = traceback.extract_tb(error.__traceback__)[-1]
        saw = f"The check itself broke: {type(error).__name__}: {error} (line {where.lineno} of {where.filename})."
        return Finding("failed", saw, "Please report this.")
