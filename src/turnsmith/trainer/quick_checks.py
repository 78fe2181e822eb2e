"""The quick checks of `turnsmith check` and a trial, which `fit()` runs before it starts any process."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from turnsmith.check.checks import CHECKS
from turnsmith.check.checks.interleaved import INTERLEAVED, check_briefly
from turnsmith.check.finding import Check
from turnsmith.check.opening import OPENING
from turnsmith.check.overlap import on_workers, settled
from turnsmith.check.run import CheckResult, run_checks
from turnsmith.check.subject import Subject
from turnsmith.check.trial import TRIAL, same_fault
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import EnvironmentFailure
from turnsmith.loop_thread import LoopThread
from turnsmith.records.run_warnings import RunWarning
from turnsmith.rollout.players import Players
from turnsmith.trainer.dataset import CustomEnvironmentDataset
from turnsmith.trainer.mix_dataset import MixDataset
from turnsmith.trainer.recipe import RunInputs

SECONDS = 10.0
"""The checks may take this long together."""
_STARTS = 4
_MOST_ROWS = 20_000


@dataclass(frozen=True)
class QuickResult:
    """What the quick checks found."""

    warnings: list[RunWarning]
    environment: EnvironmentSpec
    """The environment as the run should have it: with a worker process for each if they disturb each other."""


def run_quick_checks(inputs: RunInputs, model_path: str, say: Callable[[str], None]) -> QuickResult:
    """Run the quick checks, and say in one line what was run.

    Raises:
        EnvironmentFailure: No episode of the run could work, or they would disturb each other.
    """
    config, validation, dataset = inputs.config, inputs.validation, inputs.dataset
    tasks, is_whole = _tasks(dataset), len(dataset) <= _MOST_ROWS
    subject = Subject(
        environment=inputs.environment.isolated(),
        config=config,
        tasks=tasks,
        validation_tasks=_tasks(validation.starts) if validation.is_chosen and is_whole else None,
        reward_fn=inputs.reward_fn,
        tools=inputs.tools,
        parser=inputs.parser,
        model_path=model_path,
        episodes=_STARTS,
        seed=config.training.seed,
    )
    # Players that are models answer when the run is there.
    players = Players.of(config.players).settings.values()
    is_playable = (tasks is not None or not dataset.has_tasks) and all(
        one.who.startswith("scripted:") for one in players
    )
    # A few resets need only one worker; the last check chooses how many itself.
    few = replace(subject, environment=on_workers(subject.environment, 1))
    interleaved = replace(INTERLEAVED, function=lambda _: check_briefly(subject))
    quick = [TRIAL, *(check for check in CHECKS if check.quick), interleaved]
    checks = [check for check in quick if is_playable or not check.plays]
    results, begun, began = list[CheckResult](), list[Check](), time.monotonic()

    def note(result: CheckResult) -> None:
        results.append(result)
        _stop_if_hopeless(result)

    with closing(LoopThread("turnsmith-check")) as loop:
        work = run_checks(few, checks, note, begun.append)
        try:
            loop.run(asyncio.wait_for(work, SECONDS))
            stopped = ""
        except TimeoutError:
            stopped = f", then stopped in {begun[-1].name!r}: {SECONDS:g} s are enough for them"
    ran = [result.check.name for result in results if result.finding.status != "skipped"]
    say(f"checked in {time.monotonic() - began:.1f} s: {'; '.join(ran) or 'nothing'}{stopped} (training.check)")
    overlaps = [overlap.get("disturbed") for overlap in subject.cache.get("overlaps", [])]
    environment = settled(inputs.environment, overlaps)
    warnings = [_warning(result) for result in results if result.finding.status in ("failed", "warning")]
    return QuickResult(warnings, environment)


def _stop_if_hopeless(result: CheckResult) -> None:
    """Raise if the trial shows that every episode of the run would fail."""
    finding, advice = result.finding, "training.check=false starts the run all the same."
    if result.check not in (OPENING, TRIAL) or finding.status != "failed":
        return
    if not finding.episodes:
        raise EnvironmentFailure(f"{finding.saw} {finding.fix} {advice}")
    if error := same_fault(finding.episodes):
        tried = f"All {len(finding.episodes)} starts that were tried fail in the same way: {error.rstrip('.')}."
        raise EnvironmentFailure(f"{tried} Fix this first; {advice}")


def _warning(result: CheckResult) -> RunWarning:
    name = re.sub(r"\W+", "_", f"check {result.check.name}")
    return RunWarning(name, 0, result.finding.saw, result.check.why, result.finding.fix)


def _tasks(dataset: CustomEnvironmentDataset) -> list[dict[str, Any]] | None:
    """The first tasks of a dataset that has them in rows; a mix and a curriculum choose theirs while they train."""
    if dataset.curriculum is not None or isinstance(dataset, MixDataset) or not dataset.has_tasks:
        return None
    rows = [dataset.start(number)["task"] for number in range(min(len(dataset), _MOST_ROWS))]
    return [row for row in rows if row is not None] or None
