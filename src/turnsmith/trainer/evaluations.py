"""The evaluations of a run in training: when they are due, what is kept of them, and which checkpoint is the best."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from turnsmith.env.spec import EnvironmentSpec
from turnsmith.records.checkpoints import best_checkpoint, mark_best, saved_steps
from turnsmith.records.episodes import write_episodes
from turnsmith.records.run_folder import RunFolder
from turnsmith.rollout.evaluation.evaluate import EvaluationPlan
from turnsmith.rollout.evaluation.result import IN_TRAINING, PART, EvaluationResult
from turnsmith.trainer.validation import EvaluationSchedule

BEST_BY = "reward/mean"
"""What makes an evaluation the best: it is there for every environment, and is what training raises."""


class EpisodePlayers(Protocol):
    """The processes that run episodes."""

    def evaluate(self, environment: EnvironmentSpec, plan: EvaluationPlan) -> EvaluationResult:
        """Play the episodes of a plan with the weights that the rollout servers hold now."""
        ...


class TrainingEvaluations:
    """Evaluates the model of a run between its steps. Nothing of it reaches the training: episodes have names, seeds
    and records of their own.
    """

    def __init__(self, evaluating: EvaluationSchedule | None, run: RunFolder, emit: Callable[[str, Any], None]) -> None:
        self._evaluating = evaluating
        self._run = run
        self._emit = emit
        records = run.read_evaluations()
        self._has_first = any(record["step"] == 0 for record in records)
        for record in records:  # a run that was killed between saving a checkpoint and marking it
            self.saved(record)

    def is_due(self, step: int, *, last: bool) -> bool:
        """Whether to evaluate after a step; after step 0, before training, only once in a run."""
        if self._evaluating is None:
            return False
        return not self._has_first if step == 0 else last or step % self._evaluating.every == 0

    def make(self, step: int, players: EpisodePlayers) -> dict[str, Any]:
        """Evaluate the present weights and keep the episodes; return the record to `tell`."""
        assert self._evaluating is not None
        self._emit("phase", "evaluate")
        result = players.evaluate(self._evaluating.environment, self._evaluating.plan)
        write_episodes(self._run, step, result.trajectories, part=PART, subfolder=IN_TRAINING)
        if not result.counted:
            failed, why = dict(result.report.outcomes), result.report.first_error
            self._emit("warning", f"No episode of the evaluation after step {step} counts ({failed}): {why}")
        return {"step": step, **result.metrics()}

    def tell(self, record: Mapping[str, Any]) -> None:
        """Keep the record and show it."""
        self._has_first = True
        self._emit("evaluation", dict(record))

    def is_best(self, record: Mapping[str, Any]) -> bool:
        """Whether a checkpoint of now would be the best one."""
        best, value = best_checkpoint(self._folder), record.get(BEST_BY)
        return value is not None and (best is None or value > best.value)

    def saved(self, record: Mapping[str, Any]) -> None:
        """Mark the checkpoint of an evaluated step as the best, if it is there and it is."""
        if BEST_BY in record and record["step"] in saved_steps(self._folder):
            mark_best(self._folder, record["step"], record[BEST_BY], f"eval/{BEST_BY}")

    @property
    def _folder(self) -> Path:
        return self._run.checkpoints_dir


def as_step_metrics(record: Mapping[str, Any]) -> dict[str, Any]:
    """An evaluation as part of its step's record: its names begin with `eval/`, but for the time it took.

    Example:
        >>> as_step_metrics({"step": 4, "reward/mean": 0.5, "time/evaluate": 2.0})
        {'eval/reward/mean': 0.5, 'time/evaluate': 2.0}
    """
    return {
        name if name.startswith("time/") else f"eval/{name}": value for name, value in record.items() if name != "step"
    }
