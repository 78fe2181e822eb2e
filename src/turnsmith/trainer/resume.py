"""Opens the folder of a run that stopped, and rewinds it to its newest good checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turnsmith import config_sources
from turnsmith.config import ConfigStore, EnvironmentConfig
from turnsmith.env.mix import EnvironmentMix
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import RecordError
from turnsmith.importing import add_to_path, import_object
from turnsmith.records.checkpoints import Checkpoint, newest_checkpoint, remove_unfinished, saved_steps
from turnsmith.records.files import using
from turnsmith.records.rewind import rewind
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.run_lock import RunLock, claim_run
from turnsmith.records.run_state import this_process
from turnsmith.tools.parsing import ActionParser
from turnsmith.tools.registry import ToolRegistry
from turnsmith.trainer.checkpoints.contents import check_fit
from turnsmith.trainer.dataset import CustomEnvironmentDataset, steps_in_epoch
from turnsmith.trainer.mix_dataset import load_dataset
from turnsmith.trainer.recipe import Recipe, mix_members
from turnsmith.trainer.validation import Validation

_LOCK_SECONDS = 60.0  # for the processes of a killed run to end


@dataclass(frozen=True)
class Parts:
    """The user's own parts of a run, as the caller passes them again; None: import it by its name."""

    environment: Any = None
    reward_fn: Callable[..., Any] | None = None
    tools: ToolRegistry | None = None
    curriculum: Callable[..., Any] | None = None
    validation: Any = None
    parser: ActionParser | None = None


@dataclass
class StoppedRun:
    """A run that can be resumed."""

    run: RunFolder
    config: ConfigStore
    parts: Parts
    dataset: CustomEnvironmentDataset
    recipe: Recipe
    lock: RunLock
    """Held since before its folder was rewound."""
    checkpoint: Checkpoint | None
    """Where it resumes; None: it was stopped before its first checkpoint, and starts again."""
    warnings: list[str] = field(default_factory=list)

    @property
    def step(self) -> int:
        """The step to resume after."""
        return 0 if self.checkpoint is None else self.checkpoint.step


def reopen(run_folder: str | Path, given: Parts, overrides: Sequence[str] = (), *, trust: bool = False) -> StoppedRun:
    """Open a run that stopped, hold it, and remove from its folder what came after its newest good checkpoint.

    Raises:
        RecordError: It is still running, has no usable checkpoint, has a part that must be passed again, or cannot be
            read or written.
    """
    with using(Path(run_folder)):
        run = RunFolder.open(run_folder)
        lock = claim_run(run.path, _LOCK_SECONDS)
        try:
            return _rewound(run, lock, given, overrides, trust=trust)
        except BaseException:
            lock.release()
            raise


def _rewound(run: RunFolder, lock: RunLock, given: Parts, overrides: Sequence[str], *, trust: bool) -> StoppedRun:
    recipe = Recipe.read(run.path, trust=trust)
    config = config_sources.load(run.path / "config.yaml")
    recipe.check_extensions(config, run.path, trust=trust)
    training = config.training
    planned = (training.num_epochs, training.steps_per_epoch)
    config_sources.apply_overrides(config, overrides)
    parts = _parts(run, recipe, given, config)
    dataset = load_dataset(run.path, parts.curriculum)
    if (training.num_epochs, training.steps_per_epoch) != planned:
        recipe.steps_in_epoch = steps_in_epoch(config, dataset)
        recipe.steps = training.num_epochs * recipe.steps_in_epoch
        recipe.epochs_after = recipe.first_epoch = 0
    warnings: list[str] = []
    checkpoint = None
    remove_unfinished(run.checkpoints_dir)  # first: it may bring a checkpoint back
    if saved_steps(run.checkpoints_dir):
        checkpoint = newest_checkpoint(run.checkpoints_dir, trust=trust, warn=warnings.append)
        check_fit(checkpoint, config, warnings.append)
    stopped = StoppedRun(run, config, parts, dataset, recipe, lock, checkpoint, warnings)
    rewind(run, stopped.step)
    run.append_event("resumed", step=stopped.step, overrides=list(overrides), warnings=warnings, **this_process())
    return stopped


def _parts(run: RunFolder, recipe: Recipe, given: Parts, config: ConfigStore) -> Parts:
    lost = {part: what for part, what in recipe.nameless.items() if getattr(given, part) is None}
    if lost:
        listed = " and ".join(f"its {part} ({what})" for part, what in lost.items())
        raise RecordError(
            f"{run.path} cannot be resumed from its folder alone: {listed} cannot be imported by a name. From Python, "
            f"RayPPOTrainer.resume({str(run.path)!r}, {', '.join(f'{part}=...' for part in lost)}).fit() resumes it; "
            "defined at the top level of a module, `turnsmith resume` finds it."
        )
    for folder in reversed(recipe.import_path):
        add_to_path(folder)
    tools = given.tools
    if tools is None and recipe.tools is not None:
        tools = ToolRegistry(import_object(name) for name in recipe.tools)
    environment = given.environment if given.environment is not None else _environment(recipe, config)
    return Parts(
        environment=environment,
        reward_fn=given.reward_fn or (import_object(recipe.reward_fn) if recipe.reward_fn else None),
        tools=tools,
        curriculum=given.curriculum or (import_object(recipe.curriculum) if recipe.curriculum else None),
        validation=given.validation if given.validation is not None else _validation(run, recipe, config, environment),
        parser=given.parser or (import_object(recipe.parser)() if recipe.parser else None),
    )


def _validation(run: RunFolder, recipe: Recipe, config: ConfigStore, environment: Any) -> Validation | None:
    """What the run is evaluated on; None: it is not, or its folder does not say."""
    starts = Validation.load_starts(run.path)
    if starts is None:
        return None
    if recipe.validation is None:
        return Validation(EnvironmentSpec.of(environment, config.environment), starts)
    settings = recipe.validation_settings
    own = config.environment if settings is None else EnvironmentConfig(**settings)
    return Validation(EnvironmentSpec.of(import_object(recipe.validation), own), starts)


def _environment(recipe: Recipe, config: ConfigStore) -> EnvironmentSpec:
    if recipe.mix is not None:
        return EnvironmentSpec.of(EnvironmentMix(mix_members(recipe.mix)), config.environment)
    name = str(recipe.environment)
    settings = recipe.environment_settings
    own = config.environment if settings is None else EnvironmentConfig(**settings)
    return EnvironmentSpec.of(name, own)
