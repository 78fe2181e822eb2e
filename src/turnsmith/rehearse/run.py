"""Runs all parts of a rehearsal in order: first what needs no run, then the run, scaled to this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from turnsmith.check.finding import Finding
from turnsmith.check.run import run_checks
from turnsmith.check.subject import Subject
from turnsmith.config import ConfigStore
from turnsmith.config_sources import apply_overrides
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import TurnsmithError
from turnsmith.inference.auto import auto_device
from turnsmith.loop_thread import LoopThread
from turnsmith.rehearse import before
from turnsmith.rehearse.result import RehearsalResult, RehearsedPart
from turnsmith.rehearse.scale import changed_settings, not_executed, scaled_config
from turnsmith.rehearse.scaled_run import ScaledRun
from turnsmith.rehearse.stand_in import StandIn, stand_in_for
from turnsmith.rollout.isolation_check import check_isolation
from turnsmith.trainer.config.auto import resolve_device
from turnsmith.trainer.config.build import run_header
from turnsmith.trainer.config.check import check
from turnsmith.trainer.driver.preflight import dry_run_table, this_machine


class Rehearsal:
    """A rehearsal of one run.

    Args:
        config: The settings of the run that will be queued.
        environment: What `EnvironmentSpec.of` takes.
        words: What to train in, as words of `turnsmith train`.
        folder: Where to put the run, its log and the result.
        tasks: The rows of the dataset, if the run has one.
        validation_tasks: The held-out rows, if the run has some.
        scaled: Settings of the scaled run to set differently, as in `inference.backend=vllm`.
        minutes: How long a process of the run may take.
        show: Called with each part as soon as it is there.
        say: Called with a line of progress.
    """

    def __init__(
        self,
        config: ConfigStore,
        environment: Any,
        words: Sequence[str],
        folder: Path,
        *,
        tasks: list[dict[str, Any]] | None = None,
        validation_tasks: list[dict[str, Any]] | None = None,
        scaled: Sequence[str] = (),
        minutes: float = 15.0,
        show: Callable[[RehearsedPart], None] = lambda part: None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.config, self.folder = config, folder
        self._environment, self._words, self._tasks = environment, words, tasks
        self._validation_tasks = validation_tasks
        self._scaled, self._minutes, self._show, self._say = scaled, minutes, show, say
        self.result = RehearsalResult(run_header(config, getattr(environment, "__name__", str(environment))))

    def run(self, *, only_before: bool = False) -> RehearsalResult:
        """Rehearse; without a run if `only_before`, or if something is wrong already."""
        model = self._before()
        if model is None or self.result.failed or only_before:
            return self.result
        gpus = this_machine(self.config).gpus if auto_device() == resolve_device(self.config) == "cuda" else 0
        small = apply_overrides(scaled_config(self.config, gpus), self._scaled)
        small.model.local_path = model.path
        if model.model_path is None:  # `tiny` stands for it, as in `stand_in_for`
            small.inference.thinking, small.inference.tool_format = None, "function_calling"
        self.result.changed = changed_settings(self.config, small)
        name = self.config.model.local_path or self.config.model.model_name
        self.result.not_executed = not_executed(self.config, small, name)
        run = ScaledRun(small, self._words, self.folder, 60 * self._minutes, self._say)
        try:
            self._run(run, model)
        finally:
            steps = run.steps()
            self.result.measured = {**run.measured, "steps": steps, "asked_of_ray": dry_run_table(self.config)}
        return self.result

    def _before(self) -> StandIn | None:
        """What needs no run; None if there is no model to run with."""
        self._part("settings", lambda: _ok(check(self.config), "All are known, and go together."))
        models: list[StandIn] = []

        def model() -> Finding:
            made, finding = stand_in_for(self.config, self.folder / "model")
            models.extend([made] if made is not None else [])
            return finding

        self._part("model", model)
        specs: list[EnvironmentSpec] = []

        def environment() -> Finding:
            specs.append(EnvironmentSpec.of(self._environment, self.config.environment).isolated())
            check_isolation(specs[0])
            return before.check_import(specs[0], self.config)

        self._part("environment elsewhere", environment)
        parameters, rows = models[0].parameters if models else 0, None if self._tasks is None else len(self._tasks)
        self._part("disk for the whole run", lambda: before.check_disk_for_run(self.config, parameters, rows))
        if specs and models:
            self._play(specs[0], models[0])
        if models and not self.result.failed:  # last, because importing verl takes longest
            layout = self.config, models[0].path, self.folder
            self._part("full layout", lambda: before.check_full_layout(*layout))
        return models[0] if models and specs else None

    def _play(self, spec: EnvironmentSpec, model: StandIn) -> None:
        """Checks that play episodes in this process."""
        subject = Subject(
            environment=spec,
            config=before.places_here(self.config),
            chat=model.chat,
            parser=model.parser,
            model_path=model.model_path,
            tasks=self._tasks,
            validation_tasks=self._validation_tasks,
            seed=self.config.training.seed,
        )
        with closing(LoopThread("turnsmith-rehearse")) as loop:
            self._part("starts of evaluation", lambda: loop.run(before.check_evaluation(subject)))
            for one in loop.run(run_checks(subject, before.chosen_for_rehearsal())):
                self._add(RehearsedPart(one.check.name, one.finding, one.seconds))

    def _run(self, run: ScaledRun, model: StandIn) -> None:
        self._say(f"starting the scaled run; {run.log} has its messages")
        self._part("trained and killed", run.train)
        if not self.result.failed:
            self._say("resuming it")
            self._part("resumed", run.resume)
        if self.result.failed:
            return
        self._part("same episodes after the kill", run.compare)
        self._part("evaluation", run.evaluation)
        self._part("checkpoint", run.checkpoint)
        self._part("episodes", run.episodes)
        self._say("a step with turns of full length")
        limits = self.config.inference
        lengths = limits.max_turn_tokens or limits.max_tokens, limits.max_turn_tokens, model.vocabulary
        self._part("longest batch", lambda: run.long_batch(*lengths))
        self._part("records agree", run.records)

    def _part(self, name: str, function: Callable[[], Finding]) -> None:
        began = time.monotonic()
        try:
            finding = function()
        except TurnsmithError as error:
            finding = Finding("failed", str(error), "See the message.")
        except Exception as error:  # noqa: BLE001  (a part that breaks is a part that failed)
            finding = Finding("failed", f"{type(error).__name__}: {error}", "Please report this.")
        self._add(RehearsedPart(name, finding, time.monotonic() - began))

    def _add(self, part: RehearsedPart) -> None:
        self.result.parts.append(part)
        self._show(part)


def _ok(done: None, saw: str) -> Finding:
    return Finding("passed", saw)
