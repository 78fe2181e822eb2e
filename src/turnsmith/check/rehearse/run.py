"""Runs all parts of a rehearsal in order: first those that need no run, then the run, scaled to this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from turnsmith.check.environment.run import run_checks
from turnsmith.check.environment.subject import Subject
from turnsmith.check.finding import Check, Finding, run_check
from turnsmith.check.machine.killed_run import KilledRun
from turnsmith.check.rehearse import before
from turnsmith.check.rehearse.scale import StandIn, changed_settings, not_executed, scaled_config, stand_in_for
from turnsmith.check.report import Report, table
from turnsmith.concurrency.loop_thread import LoopThread
from turnsmith.config import ConfigStore
from turnsmith.config_sources import apply_overrides
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.inference.auto import auto_device
from turnsmith.rollout.spec import check_isolation
from turnsmith.trainer.config.check import check, run_header
from turnsmith.trainer.config.layout import resolve_device
from turnsmith.trainer.driver.preflight import dry_run_table, this_machine

T = TypeVar("T")
_QUEUED = "What is wrong here would end the queued run, hours after it was sent."
_AFTER_A_KILL = "A queued run is preempted sooner or later; what it cannot continue is lost."


SETTINGS = Check("settings", "settings", _QUEUED)
STAND_IN = Check("model", "model", _QUEUED)
ELSEWHERE = Check("elsewhere", "environment elsewhere", "Other nodes have other folders than this one.")
STARTS = Check("evaluation-starts", "starts of evaluation", "An evaluation comes after hours of training.")
LAYOUT = Check("layout", "full layout", _QUEUED)
TRAINED = Check("trained", "trained and killed", _QUEUED)
RESUMED = Check("resumed", "resumed", _AFTER_A_KILL)
SAME = Check("same-after-kill", "same episodes after the kill", _AFTER_A_KILL)
EVALUATION = Check("evaluation", "evaluation", _QUEUED)
CHECKPOINT = Check("checkpoint", "checkpoint", _AFTER_A_KILL)
EPISODES = Check("episodes", "episodes", "An episode that fails is not trained on.")
LONGEST = Check("longest-batch", "longest batch", "Turns get longer in training; the longest batch needs most memory.")
RECORDS = Check("records", "records agree", "Records that contradict each other cannot be trusted afterwards.")


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
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.config, self.folder = config, folder
        self._environment, self._words, self._tasks = environment, words, tasks
        self._validation_tasks = validation_tasks
        self._scaled, self._minutes, self._say = scaled, minutes, say
        header = run_header(config, getattr(environment, "__name__", str(environment)))
        self.report = Report("rehearsal", facts={"run": header}, shown=[header])

    def run(self, *, only_before: bool = False) -> Report:
        """Rehearse. No run is started with `only_before`, or after a failure."""
        model = self._before()
        if model is None or self.report.failed or only_before:
            return self.report
        gpus = this_machine(self.config).gpus if auto_device() == resolve_device(self.config) == "cuda" else 0
        small = apply_overrides(scaled_config(self.config, gpus), self._scaled)
        small.model.local_path = model.path
        if model.model_path is None:  # `tiny` stands for it, as in `stand_in_for`
            small.inference.thinking, small.inference.tool_format = None, "function_calling"
        run = KilledRun(small, self._words, self.folder, 60 * self._minutes, self._say)
        try:
            self._run(run, model)
        finally:
            self._tell(small)
        return self.report

    def _before(self) -> StandIn | None:
        """Check what needs no run; return None if there is no model to run with."""
        self._part(SETTINGS, lambda: _ok(check(self.config), "All are known, and go together."))
        model = self._made(STAND_IN, lambda: stand_in_for(self.config, self.folder / "model"))
        spec = self._made(ELSEWHERE, self._environment_elsewhere)
        if model is None or spec is None:
            return None
        self._play(spec, model)
        if not self.report.failed:  # last, because importing verl takes longest
            self._part(LAYOUT, lambda: before.check_full_layout(self.config, model.path, self.folder))
        return model

    def _environment_elsewhere(self) -> tuple[EnvironmentSpec, Finding]:
        spec = EnvironmentSpec.of(self._environment, self.config.environment).isolated()
        check_isolation(spec)
        return spec, before.check_import(spec, self.config)

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
            self._part(STARTS, lambda: loop.run(before.check_evaluation(subject)))
            work = run_checks(subject, before.checks_here(self.config), begin=lambda one: self._say(one.name))
            self.report.results += loop.run(work)

    def _run(self, run: KilledRun, model: StandIn) -> None:
        self._say(f"the scaled run; {run.log} has its messages")
        self._part(TRAINED, run.train)
        if not self.report.failed:
            self._part(RESUMED, run.resume)
        if self.report.failed:
            return
        self._part(SAME, run.compare)
        self._part(EVALUATION, run.evaluation)
        self._part(CHECKPOINT, run.checkpoint)
        self._part(EPISODES, run.episodes)
        self._part(LONGEST, lambda: run.long_batch(self.config.inference.max_tokens, model.vocabulary))
        self._part(RECORDS, run.records)

    def _tell(self, small: ConfigStore) -> None:
        """Add to the report what was not executed and which settings were changed."""
        changed = changed_settings(self.config, small)
        missing = not_executed(self.config, small, self.config.model.local_path or self.config.model.model_name)
        self.report.facts |= {
            "not_executed": missing,
            "changed": {name: {"run": old, "rehearsed": new} for name, (old, new) in changed.items()},
            "asked_of_ray": dry_run_table(self.config),
        }
        self.report.shown += [f"not executed: {len(missing)}; settings changed to fit this machine: {len(changed)}"]
        told = table({name: f"{old} -> {new}" for name, (old, new) in changed.items()})
        self.report.more = ["not executed:", *table(missing), "settings that were changed:", *told]

    def _made(self, check: Check, make: Callable[[], tuple[T | None, Finding]]) -> T | None:
        """Run a part that makes something for later ones; None if that failed."""
        made: T | None = None

        def look() -> Finding:
            nonlocal made
            made, finding = make()
            return finding

        self._part(check, look)
        return made

    def _part(self, check: Check, look: Callable[[], Finding]) -> None:
        self._say(check.name)
        self.report.results.append(run_check(check, look))


def _ok(done: None, saw: str) -> Finding:
    return Finding("passed", saw)
