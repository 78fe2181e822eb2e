"""Where a run is measured while it trains: starts that it is not trained on, in its own environment or another."""

from __future__ import annotations

import copy
from collections.abc import Callable, Container
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from turnsmith.config import ConfigStore
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import ConfigError
from turnsmith.rollout.evaluation.evaluate import FIRST_SEED, EvaluationPlan
from turnsmith.rollout.failure_policy import FailurePolicy
from turnsmith.rollout.limits import Limits
from turnsmith.tools.registry import ToolRegistry
from turnsmith.trainer.dataset import ENDLESS, CustomEnvironmentDataset, DatasetRow
from turnsmith.trainer.starting import steps_in_epoch, training_sampling

FOLDER = "validation"
"""The folder of a run that keeps the held-out starts."""


@dataclass(frozen=True)
class EvaluationSchedule:
    """When and what to evaluate; sent to the process that trains."""

    every: int
    """Steps between two evaluations."""
    environment: EnvironmentSpec
    plan: EvaluationPlan


@dataclass(frozen=True)
class Validation:
    """An environment and the starts in it that are kept for evaluation.

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
    """Whether the user said what to evaluate on."""

    @classmethod
    def of(cls, given: Any, environment: EnvironmentSpec) -> Validation:
        """From an environment (a class, `module:Name`, a spec, an object), a dataset, tasks as it takes them, or None.

        Args:
            given: What the user gave.
            environment: The one that is trained in; used where `given` names none.
        """
        if isinstance(given, Validation):
            return given
        if given is None:
            return cls(environment, is_chosen=False)
        if not isinstance(given, CustomEnvironmentDataset) and _is_environment(given):
            return cls(EnvironmentSpec.of(given, environment.config))
        starts = CustomEnvironmentDataset.of(given)
        if starts.curriculum is not None:
            raise ConfigError("validation has a curriculum: held-out starts must stay the same. Give tasks or seeds.")
        named = starts.environment
        own = environment if named is None else EnvironmentSpec.of(named, environment.config)
        return cls(own, starts)

    def held_out(self, most: int) -> list[DatasetRow]:
        """The first starts, at most so many; a dataset that has fewer rows is not begun again."""
        starts = copy.copy(self.starts)
        starts.seed = FIRST_SEED if starts.seed is None else starts.seed
        return [starts.start(index) for index in range(min(most, len(starts)))]

    def evaluating(
        self, config: ConfigStore, reward_fn: Callable[..., Any] | None, tools: ToolRegistry | None
    ) -> EvaluationSchedule | None:
        """What the settings ask for; None: no evaluation."""
        evaluation = config.evaluation
        if not evaluation.every:
            return None
        starts, sampling = self.held_out(evaluation.episodes), training_sampling(config)
        temperature = sampling.temperature if evaluation.temperature is None else evaluation.temperature
        plan = EvaluationPlan(
            episodes=len(starts),
            seeds=[start["seed"] for start in starts],
            tasks=[start["task"] for start in starts if start["task"] is not None] or None,
            limits=Limits.of(config.inference),
            # Always the same numbers: what differs between two evaluations is the model.
            sampling=replace(sampling, temperature=temperature, seed=FIRST_SEED),
            reward_fn=reward_fn,
            tools=tools,
            failures=FailurePolicy.of(config.failures),
            concurrency=config.inference.max_concurrency,
        )
        return EvaluationSchedule(evaluation.every, self.environment.isolated(), plan)

    def check(self, config: ConfigStore, dataset: CustomEnvironmentDataset) -> None:
        """Refuse to evaluate without held-out starts, where nobody said which they are."""
        if self.is_chosen or not config.evaluation.every:
            return
        if dataset.curriculum is not None or dataset.start(0)["task"] is not None:
            raise ConfigError(
                f"evaluation.every={config.evaluation.every} has nothing to evaluate on: the dataset has tasks or a "
                "curriculum, so other seeds alone may not be other starts. Pass validation=... with tasks kept apart."
            )
        trained = _trained_seeds(dataset, config)
        if any(start["seed"] in trained for start in self.held_out(config.evaluation.episodes)):
            raise ConfigError(
                f"Evaluation begins at seed {FIRST_SEED}, and training would come to the same seeds: choose another "
                "training.seed, or pass validation=CustomEnvironmentDataset(seeds=...)."
            )

    def save(self, run: Path) -> None:
        """Keep the starts in a run's folder."""
        (run / FOLDER).mkdir(exist_ok=True)
        self.starts.save(run / FOLDER, FIRST_SEED)

    @staticmethod
    def load_starts(run: Path) -> CustomEnvironmentDataset | None:
        """What `save` wrote, if it did."""
        return CustomEnvironmentDataset.load(run / FOLDER) if (run / FOLDER / "starts.json").is_file() else None


def _is_environment(given: Any) -> bool:
    if isinstance(given, str):
        return not given.endswith((".jsonl", ".parquet"))
    return isinstance(given, type | EnvironmentSpec) or hasattr(given, "step")


def _trained_seeds(dataset: CustomEnvironmentDataset, config: ConfigStore) -> Container[int]:
    training = config.training
    if len(dataset) < ENDLESS:
        return {dataset.start(index)["seed"] for index in range(len(dataset))}
    first = training.seed if dataset.seed is None else dataset.seed
    steps = training.num_epochs * steps_in_epoch(config, dataset)
    return range(first, first + steps * training.batch_size // training.group_size)
