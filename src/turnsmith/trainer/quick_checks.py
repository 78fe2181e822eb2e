"""The quick checks of `turnsmith check`, which `fit()` runs before it starts any process."""

from __future__ import annotations

import asyncio
import copy
import re
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

from turnsmith.check.checks import CHECKS
from turnsmith.check.run import CheckResult, run_checks
from turnsmith.check.subject import Subject
from turnsmith.config import ConfigStore
from turnsmith.env.mix import EnvironmentMix
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.loop_thread import LoopThread
from turnsmith.records.run_warnings import RunWarning
from turnsmith.trainer.dataset import CustomEnvironmentDataset
from turnsmith.trainer.validation import Validation

SECONDS = 10.0
"""The checks may take this long together."""
_STARTS = 4
_MOST_ROWS = 20_000


def run_quick_checks(
    config: ConfigStore,
    environment: EnvironmentSpec,
    dataset: CustomEnvironmentDataset,
    validation: Validation,
    model_path: str,
    say: Callable[[str], None],
) -> list[RunWarning]:
    """Run the quick checks, say in one line what was run, and return what they found as warnings of the run."""
    subject = Subject(
        environment=_on_one_worker(environment.isolated()),
        config=config,
        tasks=_tasks(dataset),
        validation_tasks=_tasks(validation.starts) if validation.is_chosen else None,
        model_path=model_path,
        episodes=_STARTS,
        seed=config.training.seed,
    )
    results, began = list[CheckResult](), time.monotonic()
    with closing(LoopThread("turnsmith-check")) as loop:
        work = run_checks(subject, [check for check in CHECKS if check.quick], results.append)
        try:
            loop.run(asyncio.wait_for(work, SECONDS))
            stopped = ""
        except TimeoutError:
            stopped = f", then stopped: {SECONDS:g} s are enough for them"
    ran = [result.check.name for result in results if result.finding.status != "skipped"]
    say(f"checked in {time.monotonic() - began:.1f} s: {'; '.join(ran) or 'nothing'}{stopped} (training.check)")
    return [_warning(result) for result in results if result.finding.status in ("failed", "warning")]


def _warning(result: CheckResult) -> RunWarning:
    name = re.sub(r"\W+", "_", f"check {result.check.name}")
    return RunWarning(name, 0, result.finding.saw, result.check.why, result.finding.fix)


def _tasks(dataset: CustomEnvironmentDataset) -> list[dict[str, Any]] | None:
    """The tasks of a dataset that has them in rows; a mix and a curriculum choose theirs while they train."""
    if dataset.curriculum is not None or len(dataset) > _MOST_ROWS:
        return None
    rows = [dataset.start(number)["task"] for number in range(len(dataset))]
    return [row for row in rows if row is not None] or None


def _on_one_worker(environment: EnvironmentSpec) -> EnvironmentSpec:
    """The same environment; a few resets need only one worker process."""
    if environment.mode != "process" or environment.config is None or isinstance(environment, EnvironmentMix):
        return environment
    config = copy.copy(environment.config)
    config.isolation_workers = 1
    return replace(environment, config=config)
