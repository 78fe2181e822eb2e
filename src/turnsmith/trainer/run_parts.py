"""What a run is made of: `RunParts`, which the user passes beside the settings, and what the run's processes get of it.

`RunParts` and the `ConfigStore` go together from the user's call to the checks, the run folder, to resuming (`resume`)
and, as an `EpisodePlan`, to every process that plays episodes. Imports no verl.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from turnsmith.config import ConfigStore
from turnsmith.config_sources import to_dict
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import ConfigError
from turnsmith.inference.chat import read_template
from turnsmith.records.files import using
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.run_lock import RunLock, claim_run
from turnsmith.rollout.failure_policy import FailurePolicy
from turnsmith.rollout.model_copies import ModelFolder
from turnsmith.rollout.players import POOL, Players
from turnsmith.rollout.rewards.reward_function import check_reward_function
from turnsmith.rollout.spec import EpisodeParts, Limits, RolloutSpec, check_isolation, check_tools
from turnsmith.trainer.config.layout import episode_workers, resolve_dtype, training_sampling
from turnsmith.trainer.dataset import Curriculum, CustomEnvironmentDataset
from turnsmith.trainer.mix_dataset import run_dataset
from turnsmith.trainer.validation import Validation


class TrainerCallback:
    """Called while a run goes on, in the process and thread that called `fit`; override the methods that you need.

    Each gets the `RayPPOTrainer` that calls it. The run goes on meanwhile, so by the time a method is called it may be
    a little further. What a method raises stops the run, and `fit` raises it again. To send metrics elsewhere, also
    from the command line, name a tracker of your own in `logging.trackers`.

    Example:
        >>> from turnsmith import ConfigStore, RayPPOTrainer, TrainerCallback
        >>> class StopAtGoal(TrainerCallback):
        ...     def on_evaluate(self, trainer, metrics):
        ...         if metrics["success/mean"] >= 0.9:
        ...             trainer.stop()
        >>> trainer = RayPPOTrainer(ConfigStore(), "turnsmith.env.examples:GuessNumber", callbacks=[StopAtGoal()])
    """

    def on_step_end(self, trainer: Any, metrics: dict[str, Any]) -> None:
        """An optimizer step is done; its metrics are those of `trainer.metrics_history`."""

    def on_evaluate(self, trainer: Any, metrics: dict[str, Any]) -> None:
        """An evaluation on held-out starts is done, also the one before training; see `trainer.evaluations`."""

    def on_save(self, trainer: Any, folder: Path) -> None:
        """A checkpoint was saved in this folder."""

    def on_train_end(self, trainer: Any) -> None:
        """`fit` is about to return; not called if the run failed."""


@dataclass(frozen=True, kw_only=True)
class RunParts(EpisodeParts):
    """Everything that the user passed for a run besides its settings.

    The run's other processes get the parts of an episode; the dataset they read in the run folder, and callbacks are
    called in the user's process.
    """

    environment: EnvironmentSpec
    dataset: CustomEnvironmentDataset
    validation: Validation
    callbacks: Sequence[TrainerCallback] = ()

    @classmethod
    def of(
        cls,
        config: ConfigStore,
        episodes: EpisodeParts,
        environment: Any,
        dataset: Any = None,
        validation: Any = None,
        callbacks: Sequence[TrainerCallback] = (),
    ) -> RunParts:
        """What the arguments of `RayPPOTrainer` stand for.

        Example:
            >>> parts = RunParts.of(ConfigStore(), EpisodeParts(reward_fn=len), "turnsmith.env.examples:GuessNumber")
            >>> parts.environment.name, parts.reward_fn, parts.validation.is_chosen
            ('GuessNumber', <built-in function len>, False)

        Raises:
            ConfigError: They don't fit each other or the settings.
        """
        check_reward_function(episodes.reward_fn)
        spec = EnvironmentSpec.of(_environment_of(dataset) if environment is None else environment, config.environment)
        check_isolation(spec.isolated(), episodes.reward_fn)
        check_tools(spec, episodes.tools)
        parts = cls(
            environment=spec,
            dataset=run_dataset(dataset, spec),
            validation=Validation.of(validation, spec),
            callbacks=tuple(callbacks),
            **episodes.parts(),
        )
        parts.validation.check(config, parts.dataset)
        for starts in (parts.dataset, parts.validation.starts):
            spec.check_tasks(starts.first_tasks())
        return parts

    def played_in(self, environment: EnvironmentSpec) -> Self:
        """The same with another environment, also for the evaluation where that is in the same one."""
        validation = self.validation
        if validation.environment == self.environment:
            validation = replace(validation, environment=environment)
        return replace(self, environment=environment, validation=validation)


@dataclass(frozen=True)
class EpisodePlan:
    """What each process that plays episodes of a run is sent, once."""

    config: ConfigStore
    """As `config.yaml` has it."""
    rollout: RolloutSpec
    """Made where the run was started, whose devices and files decide what `auto` stands for. Without a parser, the
    process that plays the episodes makes the one that `inference.tool_format` names."""
    run_dir: str
    lock_token: str = ""
    """The token with which this run is held; processes check it before they write to its folder."""
    num_actors: int = 0
    """Processes that play episodes; 0: the task runner does."""
    curriculum: Curriculum | None = None
    """Chooses the starts, if the dataset has one."""

    @classmethod
    def of(cls, config: ConfigStore, parts: RunParts, lock: RunLock, model_path: str) -> EpisodePlan:
        """The plan of a run that is about to start.

        Args:
            config: Its settings.
            parts: What it is made of.
            lock: Holds its folder.
            model_path: Where the first model is.
        """
        model, run_dir = config.model, str(lock.folder)
        first = ModelFolder(model_path, resolve_dtype(config), model.trust_remote_code, model.chat_template)
        rollout = RolloutSpec(
            environment=parts.environment.isolated(),
            limits=Limits.of(config.inference),
            sampling=training_sampling(config),
            players=replace(Players.of(config.players), first=first, pool=str(Path(run_dir, POOL))),
            failures=FailurePolicy.of(config.failures),
            **parts.parts(),
        )
        return cls(
            with_template_text(config), rollout, run_dir, lock.token, episode_workers(config), parts.dataset.curriculum
        )

    @property
    def filtered_group_size(self) -> int:
        """`training.group_size`, if groups with equal rewards are replaced; else 0."""
        training = self.config.training
        return training.group_size if training.filter_groups else 0


def claim_new_folder(config: ConfigStore, environment: str) -> tuple[RunFolder, RunLock]:
    """A folder for a new run in an environment of this name, and the lock that this process holds it with."""
    checkpoint = config.checkpoint
    name = checkpoint.run_name or f"{environment}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = RunFolder.create(Path(checkpoint.output_dir).absolute(), name)
    with using(folder.path):
        return folder, claim_run(folder.path, 0)


def write_settings(config: ConfigStore, folder: RunFolder) -> None:
    """Write the settings to a run folder."""
    folder.write_config(to_dict(with_template_text(config)))


def write_starts(config: ConfigStore, parts: RunParts, folder: RunFolder, *, is_new: bool) -> None:
    """Write where episodes start, in training and in evaluation; a resumed run has the former already."""
    if is_new:
        parts.dataset.save(folder.path, config.training.seed)
    if config.evaluation.every:
        parts.validation.save(folder.path)


def with_template_text(config: ConfigStore) -> ConfigStore:
    """The settings with the text of `model.chat_template`, not the name of a file: it may have another content later,
    and does not exist on other machines.
    """
    return replace(config, model=replace(config.model, chat_template=read_template(config.model.chat_template)))


def one_of(**given: Any) -> Any:
    """The argument that was given, of several names for it.

    Example:
        >>> one_of(dataset=None, train_dataset=[{"a": 1}])
        [{'a': 1}]
    """
    values = {name: value for name, value in given.items() if value is not None}
    if len(values) > 1:
        raise ConfigError(f"{' and '.join(values)} are two names for the same: pass one.")
    return next(iter(values.values()), None)


def _environment_of(dataset: Any) -> Any:
    """The environment that a dataset was made for."""
    environment = getattr(dataset, "environment", None)
    if environment is None:
        raise ConfigError(
            "There is no environment to train in: pass environment=..., a class, an object or 'module:Name'."
        )
    return environment


def check_tokenizer(tokenizer: Any, config: ConfigStore) -> None:
    """Raise a ConfigError for a tokenizer with other tokens or another chat template than training will use."""
    if tokenizer is None:
        return
    from turnsmith.inference.models import resolve
    from turnsmith.inference.sync.engines import load_tokenizer

    model = config.model
    own, _ = load_tokenizer(resolve(model.model_name, model.local_path), model.trust_remote_code)
    if tokenizer.get_vocab() != own.get_vocab():
        raise ConfigError(
            f"The tokenizer ({tokenizer.name_or_path!r}) has other tokens than that of the model "
            f"({model.local_path or model.model_name!r}), which is always used: leave tokenizer out."
        )
    template = read_template(model.chat_template) or own.chat_template or read_template("plain")
    if tokenizer.chat_template and tokenizer.chat_template != template:
        raise ConfigError(
            "The tokenizer's chat template is not the one that the run would use: set model.chat_template to its text."
        )
