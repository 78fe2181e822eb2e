"""Evaluation during training: held-out starts, when to evaluate, what is recorded, and which checkpoint is the best."""

from __future__ import annotations

import copy
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from turnsmith.config import ConfigStore
from turnsmith.env.mix import EnvironmentMix
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import ConfigError
from turnsmith.records.checkpoints import best_checkpoint, mark_best, saved_steps
from turnsmith.records.episodes import write_episodes
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.run_state import EventKind
from turnsmith.rollout.evaluation.evaluate import FIRST_SEED, EvaluationPlan
from turnsmith.rollout.evaluation.result import IN_TRAINING, PART, EvaluationResult
from turnsmith.rollout.failure_policy import FailurePolicy
from turnsmith.rollout.spec import Limits
from turnsmith.trainer.config.layout import training_sampling
from turnsmith.trainer.dataset import ENDLESS, CustomEnvironmentDataset, DatasetRow, require_tasks, steps_in_epoch
from turnsmith.trainer.mix_dataset import MixDataset, load_dataset

FOLDER = "validation"
"""The folder of a run with the held-out dataset."""
BEST_BY = "reward/mean"
"""The metric that makes an evaluation the best: every environment has it, and it is what training raises."""


@dataclass(frozen=True)
class EvaluationSchedule:
    """When and what to evaluate; sent to the task runner."""

    every: int
    """Steps between two evaluations."""
    environment: EnvironmentSpec
    plan: EvaluationPlan
    """Each worker plays it with the parts and players of the run."""


@dataclass(frozen=True)
class Validation:
    """An environment and its held-out starts.

    Example:
        >>> spec = EnvironmentSpec.of("turnsmith.env.examples:GuessNumber")
        >>> Validation.of(None, spec).held_out(2)
        [{'index': 0, 'seed': 1000000, 'task': None}, {'index': 1, 'seed': 1000001, 'task': None}]
        >>> Validation.of([{"sum": "1 + 1"}], spec).held_out(2)
        [{'index': 0, 'seed': 1000000, 'task': {'sum': '1 + 1'}}]
    """

    environment: EnvironmentSpec
    starts: CustomEnvironmentDataset = field(default_factory=CustomEnvironmentDataset)
    is_chosen: bool = True
    """Whether the user chose what to evaluate on."""

    @classmethod
    def of(cls, given: Any, environment: EnvironmentSpec) -> Validation:
        """From an environment (a class, `module:Name`, a spec, an object), a dataset or tasks, or None.

        Args:
            given: What the user passed.
            environment: The one to train in; used where `given` names none.
        """
        if isinstance(given, Validation):
            return given
        if given is None:
            return cls(environment, is_chosen=False)
        if not isinstance(given, CustomEnvironmentDataset) and _is_environment(given):
            own = EnvironmentSpec.of(given, environment.config)
            return cls(own, MixDataset.of_mix(own)) if isinstance(own, EnvironmentMix) else cls(own)
        if isinstance(environment, EnvironmentMix):
            raise ConfigError(
                "validation has tasks, but the run has a mix of environments: pass an EnvironmentMix with held-out "
                "tasks, MixMember(..., dataset=tasks)."
            )
        starts = CustomEnvironmentDataset.of(given)
        if starts.curriculum is not None:
            raise ConfigError("validation has a curriculum, but held-out starts must stay the same: pass tasks.")
        named = starts.environment
        own = environment if named is None else EnvironmentSpec.of(named, environment.config)
        return cls(own, starts)

    def held_out(self, most: int) -> list[DatasetRow]:
        """The first `most` starts; a dataset with fewer rows is not repeated."""
        starts = copy.copy(self.starts)
        starts.seed = FIRST_SEED if starts.seed is None else starts.seed
        return [starts.start(index) for index in range(min(most, len(starts)))]

    def schedule(self, config: ConfigStore) -> EvaluationSchedule | None:
        """The schedule that the settings ask for; None: no evaluation."""
        evaluation = config.evaluation
        if not evaluation.every:
            return None
        starts, sampling = self.held_out(evaluation.episodes), training_sampling(config)
        temperature = sampling.temperature if evaluation.temperature is None else evaluation.temperature
        plan = EvaluationPlan(
            episodes=len(starts),
            seeds=[start["seed"] for start in starts],
            tasks=_tasks(starts),
            environments=[name for start in starts if (name := start.get("environment"))] or None,
            limits=Limits.of(config.inference),
            # Always the same random numbers: only the model differs between two evaluations.
            sampling=replace(sampling, temperature=temperature, seed=FIRST_SEED),
            failures=FailurePolicy.of(config.failures),
            concurrency=config.inference.max_concurrency,
        )
        return EvaluationSchedule(evaluation.every, self.environment.isolated(), plan)

    def check(self, config: ConfigStore, dataset: CustomEnvironmentDataset) -> None:
        """Raise if evaluation has no held-out starts, or would use starts that are trained on."""
        if not config.evaluation.every:
            return
        if self.is_chosen:
            if not isinstance(self.environment, EnvironmentMix):
                require_tasks(self.starts, self.environment)
            return
        if dataset.has_tasks:
            raise ConfigError(
                f"evaluation.every={config.evaluation.every} has no held-out set: the dataset has tasks or a "
                "curriculum, so other seeds may not be other starts. Pass held-out tasks: validation=... or "
                "--validation FILE."
            )
        trained = _trained_seeds(dataset, config)
        if any(start["seed"] in seeds for seeds in trained for start in self.held_out(config.evaluation.episodes)):
            raise ConfigError(
                f"Evaluation uses seeds from {FIRST_SEED} on, and training would reach them: choose another "
                "training.seed, or pass validation=CustomEnvironmentDataset(seeds=...)."
            )

    def warning(self, config: ConfigStore) -> str:
        """A sentence if the user chose held-out starts and the settings never evaluate on them; else empty."""
        if not self.is_chosen or config.evaluation.every:
            return ""
        return (
            "warning: a held-out set is given (validation), but evaluation.every is 0, so that nothing is evaluated: "
            "set evaluation.every, in steps."
        )

    def save(self, run: Path) -> None:
        """Write the held-out dataset to a run folder."""
        (run / FOLDER).mkdir(exist_ok=True)
        self.starts.save(run / FOLDER, FIRST_SEED)

    @staticmethod
    def load_starts(run: Path) -> CustomEnvironmentDataset | None:
        """Read what `save` wrote; None: nothing."""
        return load_dataset(run / FOLDER) if (run / FOLDER / "starts.json").is_file() else None


class EpisodeRunners(Protocol):
    """The processes that run episodes."""

    def evaluate(self, environment: EnvironmentSpec, plan: EvaluationPlan) -> EvaluationResult:
        """Play the episodes of a plan with the current weights of the rollout servers."""
        ...


class TrainingEvaluations:
    """Evaluates the model between training steps. Training is not affected: episodes have their own ids, seeds and
    records.
    """

    def __init__(
        self, schedule: EvaluationSchedule | None, run: RunFolder, emit: Callable[[EventKind, Any], None]
    ) -> None:
        self._schedule = schedule
        self._run = run
        self._emit = emit
        records = run.read_evaluations()
        self._has_first = any(record["step"] == 0 for record in records)
        for record in records:  # a run may have been killed between saving a checkpoint and marking it
            self.saved(record)

    def is_due(self, step: int, *, last: bool) -> bool:
        """Whether to evaluate after a step; after step 0, before training, only once in a run."""
        if self._schedule is None:
            return False
        return not self._has_first if step == 0 else last or step % self._schedule.every == 0

    def make(self, step: int, runners: EpisodeRunners) -> dict[str, Any]:
        """Evaluate the current weights and record the episodes; return the metrics for `report`."""
        assert self._schedule is not None
        self._emit(EventKind.PHASE, "evaluate")
        result = runners.evaluate(self._schedule.environment, self._schedule.plan)
        write_episodes(self._run, step, result.trajectories, part=PART, subfolder=IN_TRAINING)
        if not result.counted:
            ends, why = result.report.ends, result.report.first_error
            self._emit(
                EventKind.WARNING, f"No episode of the evaluation after step {step} could be counted ({ends}): {why}"
            )
        return {"step": step, **result.metrics()}

    def report(self, record: Mapping[str, Any]) -> None:
        """Record and show the metrics of an evaluation."""
        self._has_first = True
        self._emit(EventKind.EVALUATION, dict(record))

    def is_best(self, record: Mapping[str, Any]) -> bool:
        """Whether a checkpoint made now would be the best."""
        best, value = best_checkpoint(self._folder), record.get(BEST_BY)
        return value is not None and (best is None or value > best.value)

    def saved(self, record: Mapping[str, Any]) -> None:
        """Mark the checkpoint of an evaluated step as the best, if it exists and is."""
        if BEST_BY in record and record["step"] in saved_steps(self._folder):
            mark_best(self._folder, record["step"], record[BEST_BY], f"eval/{BEST_BY}")

    @property
    def _folder(self) -> Path:
        return self._run.checkpoints_dir


def as_step_metrics(record: Mapping[str, Any]) -> dict[str, Any]:
    """An evaluation's metrics as part of its step's record, under `eval/`; its time stays under `time/`.

    Example:
        >>> as_step_metrics({"step": 4, "reward/mean": 0.5, "time/evaluate": 2.0})
        {'eval/reward/mean': 0.5, 'time/evaluate': 2.0}
    """
    return {
        name if name.startswith("time/") else f"eval/{name}": value for name, value in record.items() if name != "step"
    }


def _is_environment(given: Any) -> bool:
    if isinstance(given, str):
        return ":" in given  # a name is module:Name, gymnasium:Name, openenv://host; else it is a file
    return isinstance(given, type | EnvironmentSpec) or hasattr(given, "step")


def _tasks(starts: Sequence[DatasetRow]) -> list[dict[str, Any] | None] | None:
    tasks = [start["task"] for start in starts]
    return tasks if any(task is not None for task in tasks) else None


def _trained_seeds(dataset: CustomEnvironmentDataset, config: ConfigStore) -> list[Container[int]]:
    training = config.training
    if isinstance(dataset, MixDataset):
        return [seeds for one in dataset.datasets.values() for seeds in _trained_seeds(one, config)]
    if len(dataset) < ENDLESS:
        return [{dataset.start(index)["seed"] for index in range(len(dataset))}]
    first = training.seed if dataset.seed is None else dataset.seed
    steps = training.num_epochs * steps_in_epoch(config, dataset)
    return [range(first, first + steps * training.batch_size // training.group_size)]
