"""The quick checks of `turnsmith check` and a trial, which `fit()` runs before it starts any process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from turnsmith.check.environment.checks import CHECKS
from turnsmith.check.environment.checks.repeats import check_briefly, check_interleaved
from turnsmith.check.environment.opening import check_opening, check_trial, same_fault
from turnsmith.check.environment.overlap import disturbed_in, on_workers, settled
from turnsmith.check.environment.run import run_checks
from turnsmith.check.environment.subject import Subject
from turnsmith.check.finding import Check, Result
from turnsmith.concurrency.loop_thread import LoopThread
from turnsmith.config import ConfigStore
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import EnvironmentFailure
from turnsmith.records.files import using
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.run_state import EventKind
from turnsmith.records.run_warnings import RunWarning
from turnsmith.rollout.players import Players
from turnsmith.trainer.dataset import CustomEnvironmentDataset
from turnsmith.trainer.mix_dataset import MixDataset
from turnsmith.trainer.run_parts import RunParts, write_settings

SECONDS = 10.0
"""The checks may take this long together."""
_STARTS = 4
_MOST_ROWS = 20_000


@dataclass(frozen=True)
class QuickResult:
    """The findings of the quick checks."""

    warnings: list[RunWarning]
    environment: EnvironmentSpec
    """The environment as the run should have it: with a worker process for each if they disturb each other."""


def run_quick_checks(config: ConfigStore, parts: RunParts, model_path: str, say: Callable[[str], None]) -> QuickResult:
    """Run the quick checks, and say in one line what was run.

    Raises:
        EnvironmentFailure: No episode of the run could work, or they would disturb each other.
    """
    validation, dataset = parts.validation, parts.dataset
    tasks, is_whole = _tasks(dataset), len(dataset) <= _MOST_ROWS
    subject = Subject(
        environment=parts.environment.isolated(),
        config=config,
        tasks=tasks,
        validation_tasks=_tasks(validation.starts) if validation.is_chosen and is_whole else None,
        model_path=model_path,
        episodes=_STARTS,
        seed=config.training.seed,
        **parts.parts(),
    )
    # Players that are models cannot answer before the run has started.
    players = Players.of(config.players).settings.values()
    is_playable = (tasks is not None or not dataset.has_tasks) and all(
        one.who.startswith("scripted:") for one in players
    )
    # A few resets need only one worker; the last check chooses how many itself.
    few = replace(subject, environment=on_workers(subject.environment, 1))
    interleaved = replace(check_interleaved, function=lambda _: check_briefly(subject))
    quick = [check_trial, *(check for check in CHECKS if check.quick), interleaved]
    checks = [check for check in quick if is_playable or not check.plays]
    results, begun, began = list[Result](), list[Check](), time.monotonic()

    def note(result: Result) -> None:
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
    environment = settled(parts.environment, disturbed_in(subject))
    warnings = [_warning(result) for result in results if result.finding.status in ("failed", "warning")]
    return QuickResult(warnings, environment)


def check_before_start(
    config: ConfigStore, parts: RunParts, model_path: str, folder: RunFolder, say: Callable[[str], None]
) -> tuple[ConfigStore, RunParts]:
    """Run the quick checks for a run that is about to start; return its settings and parts as it should have them.

    What is found is shown and recorded as a warning, unless no episode of the run can work.
    """
    found = run_quick_checks(config, parts, model_path, say)
    for warning in found.warnings:
        say(str(warning))
        with using(folder.path):
            folder.append_event(EventKind.WARNING, content=warning.content())
    environment = found.environment
    if environment == parts.environment:
        return config, parts
    if parts.environment.config == config.environment and environment.config is not None:
        config = replace(config, environment=environment.config)
    with using(folder.path):
        write_settings(config, folder)
    return config, parts.played_in(environment)


def _stop_if_hopeless(result: Result) -> None:
    """Raise if the trial shows that every episode of the run would fail."""
    finding, advice = result.finding, "training.check=false starts the run all the same."
    if result.check not in (check_opening, check_trial) or finding.status != "failed":
        return
    if not finding.episodes:
        raise EnvironmentFailure(f"{finding.saw} {finding.fix} {advice}")
    if error := same_fault(finding.episodes):
        tried = f"All {len(finding.episodes)} starts that were tried fail in the same way: {error.rstrip('.')}."
        raise EnvironmentFailure(f"{tried} Fix this first; {advice}")


def _warning(result: Result) -> RunWarning:
    name = f"check_{result.check.code.replace('-', '_')}"
    return RunWarning(name, 0, result.finding.saw, result.check.why, result.finding.fix)


def _tasks(dataset: CustomEnvironmentDataset) -> list[dict[str, Any]] | None:
    """The first tasks of a dataset that has them in rows; a mix and a curriculum choose theirs while they train."""
    if dataset.curriculum is not None or isinstance(dataset, MixDataset) or not dataset.has_tasks:
        return None
    rows = [dataset.start(number)["task"] for number in range(min(len(dataset), _MOST_ROWS))]
    return [row for row in rows if row is not None] or None
