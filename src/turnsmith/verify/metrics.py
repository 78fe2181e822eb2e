"""Checks that the metrics have each step once, and agree with its episodes and evaluations."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from turnsmith.records.run_state import EventKind, RunState
from turnsmith.rollout.episode_report import report_of
from turnsmith.rollout.evaluation.result import IN_TRAINING, PART
from turnsmith.trajectory import Trajectory
from turnsmith.verify.check import HistoryCheck, counted
from turnsmith.verify.history import RunHistory, StepHistory

_NOT_IN_ROWS = ("time/waiting", "failures/retried")
"""Waiting times, and attempts that were lost with their process, are not recorded with the episodes."""


class MetricsCheck(HistoryCheck):
    """Computes the metrics of each step's episodes again, and compares them with `metrics.jsonl`."""

    name = "metrics"

    def __init__(self, history: RunHistory) -> None:
        super().__init__(history)
        self._steps = 0
        self._evaluations = 0
        if not history.metrics:
            self.not_recorded = "no step was finished"

    def check_step(self, step: StepHistory) -> None:
        """Compare the metrics of a step with its episodes."""
        if step.metrics is None:
            return
        self._steps += 1
        if not self.history.has_episodes:
            return
        own = {"success/mean"} if not self.history.is_training else set[str]()  # an evaluation has its own rule
        self._compare(step.step, step.metrics, step.episodes, own)
        versions = [min(turn.weights_version for turn in episode.turns) for episode in step.counted if episode.turns]
        recorded = step.metrics.get("staleness/max")
        if versions and recorded is not None:
            stalest = step.step - 1 - min(versions)
            sentence = f"staleness/max is {_shown(recorded)} in its metrics, but {stalest} by the episodes."
            self.require(recorded == stalest, sentence, step.step)

    def check_run(self) -> None:
        """Look for steps that are missing, or recorded twice, and for evaluations without their episodes."""
        history = self.history
        if self.not_recorded:
            return
        steps = [int(line["step"]) for line in history.metrics]
        if history.is_training:
            known = steps[0] == 1 or steps[0] - 1 in history.loaded_steps
            self.require(known, f"the first step in metrics.jsonl is {steps[0]}.")
        for earlier, later in itertools.pairwise(steps):
            known = later == earlier + 1 or later - 1 in history.loaded_steps
            self.require(known, f"it comes after step {earlier} in metrics.jsonl.", later)
        repeated = Counter(int(line["step"]) for line in history.all_metrics)
        for step, count in repeated.items() if not history.loaded_steps else ():
            self.require(count == 1, f"it has {count} lines in metrics.jsonl.", step)
        self._check_end(steps[-1])
        for evaluation in history.evaluations:
            self._check_evaluation(evaluation)

    def _check_end(self, last: int) -> None:
        ends = [event.get("step") for event in self.history.events if event["kind"] == EventKind.FINISHED]
        if self.history.state is RunState.FINISHED and ends and ends[-1] is not None:
            self.require(last == ends[-1], f"the run finished step {ends[-1]}, but metrics.jsonl ends at {last}.")

    def _check_evaluation(self, record: dict[str, Any]) -> None:
        step = int(record["step"])
        file = self.history.run.path / IN_TRAINING / f"step-{step:08d}-{PART}.parquet"
        self._evaluations += 1
        if not file.is_file():
            self.require(False, f"the episodes of its evaluation are not in {IN_TRAINING}/.", step)
            return
        episodes = [episode for _, episode in self.history.episodes_in(file)]
        self._compare(step, record, episodes, {"success/mean"}, "evaluation")
        for line in self.history.metrics:
            if line["step"] == step:
                beside = {name[5:]: value for name, value in line.items() if name.startswith("eval/")}
                different = sorted(name for name, value in beside.items() if not _equal(value, record.get(name)))
                sentence = f"metrics.jsonl and evaluations.jsonl differ in {', '.join(different)} of its evaluation."
                self.require(not different, sentence, step)

    def _compare(
        self, step: int, record: Mapping[str, Any], episodes: list[Trajectory], own: set[str], what: str = "metrics"
    ) -> None:
        try:
            expected = report_of(episodes).metrics()
        except (AttributeError, TypeError, ValueError):  # an `info` may hold any JSON
            self.require(False, "the tool calls in the infos of its episodes are damaged.", step)
            return
        for name, value in expected.items():
            if name not in _NOT_IN_ROWS and name not in own:
                recorded = record.get(name)
                sentence = f"{name} is {_shown(recorded)} in its {what}, but {_shown(value)} by the episodes."
                self.require(_equal(recorded, value), sentence, step)

    def summary(self) -> str:
        """How many steps and evaluations were compared."""
        if not self.history.has_episodes:
            return f"{counted(self._steps, 'step')} in order; no episodes to compare them with"
        more = f" and {counted(self._evaluations, 'evaluation')}" if self._evaluations else ""
        return f"{counted(self._steps, 'step')}{more}, as recomputed from the episodes"


def _equal(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, int | float) and isinstance(theirs, int | float):
        return math.isclose(ours, theirs, rel_tol=1e-9, abs_tol=1e-12) or (math.isnan(ours) and math.isnan(theirs))
    return ours == theirs


def _shown(value: Any) -> str:
    return "missing" if value is None else f"{value:.6g}" if isinstance(value, int | float) else repr(value)
