"""What a run was made from, as its folder keeps it, and how a run that stopped is opened again and rewound.

`resume.json` names everything that is not in config.yaml, so that `reopen` can import it again. Code itself is never
written to a run folder; what has no name to import it by, such as a lambda, has to be passed again from Python.
"""

from __future__ import annotations

import hmac
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import msgspec

from turnsmith.config import ConfigStore, EnvironmentConfig, ImportName
from turnsmith.config_sources import apply_overrides, known_keys, load, to_dict
from turnsmith.env.mix import EnvironmentMix, MixMember
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import RecordError
from turnsmith.importing import add_to_path, import_name, import_object
from turnsmith.records.checkpoints import Checkpoint, newest_checkpoint, remove_unfinished, saved_steps
from turnsmith.records.files import read_file, using, write_text
from turnsmith.records.rewind import rewind
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.run_lock import RunLock, claim_run
from turnsmith.records.run_state import EventKind, this_process
from turnsmith.records.signing_key import signature, signing_key
from turnsmith.rollout.players import Players
from turnsmith.rollout.spec import EpisodeParts
from turnsmith.tools.parsing import ActionParser
from turnsmith.tools.registry import ToolRegistry
from turnsmith.trainer.checkpoints.contents import check_fit
from turnsmith.trainer.dataset import Epochs, steps_in_epoch
from turnsmith.trainer.mix_dataset import load_dataset
from turnsmith.trainer.run_parts import RunParts
from turnsmith.trainer.validation import Validation

_FILE = "resume.json"
_LOCK_SECONDS = 60.0  # for the processes of a killed run to end
PARTS = (*(part.name for part in fields(EpisodeParts)), "curriculum")
"""The parts that the user has to pass again where they have no name, besides environments."""


@dataclass
class Recipe:
    """The parts of a run besides its settings and dataset, as names to import; None: the run has no such part."""

    steps: int = 0
    """Optimizer steps that were asked for, in all."""
    steps_in_epoch: int = 1
    epochs_after: int = 0
    """The step after which the last `fit` began."""
    first_epoch: int = 0
    """The number of its first epoch."""
    environment: str | None = None
    environment_settings: dict[str, Any] | None = None
    """Where they are not those of config.yaml."""
    mix: dict[str, dict[str, Any]] | None = None
    """The environments of a mix that has no name to import it by."""
    validation: str | None = None
    """The environment to evaluate in, where it is not the one to train in."""
    validation_settings: dict[str, Any] | None = None
    parts: dict[str, str | list[str] | None] = field(default_factory=dict)
    """The other parts, by the argument of `RayPPOTrainer.resume` that takes them. In the file they stand beside these
    fields."""
    extensions: dict[str, list[str]] = field(default_factory=dict)
    """The user's own estimator, parser, trackers and warnings, by the setting in config.yaml that names them."""
    nameless: dict[str, str] = field(default_factory=dict)
    """Parts that cannot be imported again, and what they are."""
    import_path: list[str] = field(default_factory=list)
    """Folders that modules were imported from."""

    @classmethod
    def of(cls, config: ConfigStore, parts: RunParts, last_step: int, epochs: Epochs) -> Recipe:
        """The recipe of a run that is asked for so many steps."""
        recipe = cls(
            last_step,
            epochs.steps,
            epochs.after,
            epochs.first,
            extensions=extensions_in(config),
            import_path=list(dict.fromkeys(map(os.path.abspath, ("", *sys.path[:2])))),
        )
        recipe.add_environment(parts.environment, config.environment)
        for part, value in {**parts.parts(), "curriculum": parts.dataset.curriculum}.items():
            recipe.parts[part] = recipe.names(part, value)
        if config.evaluation.every and parts.validation.environment != parts.environment:
            recipe.add_validation(parts.validation.environment, config.environment)
        return recipe

    @property
    def epochs(self) -> Epochs:
        """Those of the last `fit`."""
        return Epochs(self.steps_in_epoch, self.epochs_after, self.first_epoch)

    def names(self, part: str, value: Any) -> str | list[str] | None:
        """The names that `load` finds a part by; what has none is noted.

        A parser is an object: it is found by its class, if one made without arguments is the same.
        """
        if isinstance(value, ToolRegistry):
            return [name for tool in value if (name := self._name(part, tool))]
        if not isinstance(value, ActionParser):
            return self._name(part, value)
        try:
            is_default = vars(value) == vars(type(value)())
        except TypeError:
            is_default = False
        if (name := self._name(part, type(value))) and not is_default:
            self.nameless[part] = f"a {type(value).__name__} with settings of its own"
        return name

    def load(self, part: str) -> Any:
        """Import a part by the names that `names` found; None: the run has none."""
        names = self.parts.get(part)
        if isinstance(names, list):
            return ToolRegistry(import_object(name) for name in names)
        found = import_object(names) if names else None
        return found() if isinstance(found, type) and issubclass(found, ActionParser) else found

    def _name(self, part: str, value: Any) -> str | None:
        """The name to import `value` by; if it has none, that is noted."""
        name = None if value is None else import_name(value)
        if value is not None and name is None:
            self.nameless[part] = str(getattr(value, "__qualname__", None) or type(value).__name__)
        return name

    def add_environment(self, environment: EnvironmentSpec, settings: Any) -> None:
        """Note the environment to train in; `settings` are those in the config."""
        if isinstance(environment, EnvironmentMix) and not environment.target:
            self.mix = {name: self._mix_member(name, member, settings) for name, member in environment.members.items()}
            return
        target = environment.target
        self.environment = target if isinstance(target, str) else self._name("environment", target)
        if isinstance(environment, EnvironmentMix):
            return
        if environment.config is not None and environment.config != settings:
            self.environment_settings = self._plain_settings(environment.config, "environment")
        elif not isinstance(settings, EnvironmentConfig):
            self.nameless["environment"] = f"{environment.name} with a config of type {type(settings).__name__}"

    def add_validation(self, environment: EnvironmentSpec, settings: Any) -> None:
        """Note the environment to evaluate in; `settings` are those in the config."""
        if isinstance(environment, EnvironmentMix) and not environment.target:
            self.nameless["validation"] = "a mix that is not defined in a module"
            return
        target = environment.target
        self.validation = target if isinstance(target, str) else self._name("validation", target)
        if environment.config is not None and environment.config != settings:
            self.validation_settings = self._plain_settings(environment.config, "validation")

    def _mix_member(self, name: str, member: MixMember, settings: Any) -> dict[str, Any]:
        spec: EnvironmentSpec = member.environment
        known = {one.name: getattr(member, one.name) for one in fields(member)}
        known["environment"] = spec.target if isinstance(spec.target, str) else import_name(spec.target)
        if known["environment"] is None:
            self.nameless["environment"] = f"the {name} of its mix, {spec.name}"
        del known["dataset"]  # `starts/` has it
        if spec.config is not None and spec.config != settings:
            known["settings"] = self._plain_settings(spec.config, "environment")
        return known

    def _plain_settings(self, settings: EnvironmentConfig, part: str) -> dict[str, Any] | None:
        try:
            plain = json.loads(json.dumps(settings.as_dict(), allow_nan=False))
        except (TypeError, ValueError):
            plain = None
        if plain != settings.as_dict():
            self.nameless[part] = "an object with settings that have no JSON form"
        return plain

    def write(self, run: Path) -> None:
        """Write it to the run folder, signed: whoever can write here decides what code the next `resume` runs."""
        recipe = asdict(self)
        recipe |= recipe.pop("parts")
        write_text(run / _FILE, json.dumps({**recipe, "signature": _signature(recipe)}, indent=1) + "\n")

    @classmethod
    def read(cls, run: Path, *, trust: bool = False) -> Recipe:
        """Read what `write` wrote.

        Raises:
            RecordError: There is none, it is damaged, or somebody else wrote it and it is not trusted.
        """
        data = read_file(run / _FILE)
        if not data:
            raise RecordError(f"{run} cannot be resumed: it has no {_FILE}, so an older turnsmith wrote it.")
        try:
            # Not `parse_object`: folders may have names that are not UTF-8, and settings integers of any length.
            content = msgspec.convert(json.loads(data), dict[str, Any])
            signed = str(content.pop("signature", ""))
            parts = {part: content[part] for part in PARTS if part in content}
            recipe = cls(**{name: value for name, value in content.items() if name not in parts}, parts=parts)
            msgspec.convert(asdict(recipe), cls)
        except (ValueError, TypeError, RecursionError) as error:
            raise RecordError(f"{run / _FILE} is damaged: {error}.") from None
        own = _signature(content)
        if not trust and not (own and hmac.compare_digest(signed.encode(), own.encode())):
            raise RecordError(
                f"{run / _FILE} was not written by this user's turnsmith, or was changed since. Resuming runs the code "
                "that it names: if you trust it, pass trust=True, or --trust on the command line."
            )
        return recipe

    def check_extensions(self, config: ConfigStore, run: Path, *, trust: bool = False) -> None:
        """Raise unless config.yaml, which is not signed, names only code that the recipe names as well."""
        if not trust and extensions_in(config) != self.extensions:
            raise RecordError(
                f"{run / 'config.yaml'} names code that {_FILE} does not, so it was changed since the run began. If "
                "you trust it, pass trust=True, or --trust on the command line."
            )


def mix_members(mix: dict[str, dict[str, Any]]) -> dict[str, MixMember]:
    """The environments of `Recipe.mix`.

    Example:
        >>> guess = {"environment": "turnsmith.env.examples:GuessNumber", "weight": 3.0, "settings": {"highest": 8}}
        >>> mix_members({"guess": guess})["guess"].environment.config.highest
        8
    """
    members: dict[str, MixMember] = {}
    for name, known in mix.items():
        known = dict(known)
        settings, target = known.pop("settings", None), str(known.pop("environment"))
        config = None if settings is None else EnvironmentConfig(**settings)
        members[name] = MixMember(EnvironmentSpec(target, config), **known)
    return members


def extensions_in(config: ConfigStore) -> dict[str, list[str]]:
    """The user's own code that settings name, by the setting.

    Example:
        >>> config = ConfigStore()
        >>> config.training.adv_estimator = ImportName("my_module:mine")
        >>> extensions_in(config)
        {'training.adv_estimator': ['my_module:mine']}
    """
    names: dict[str, list[str]] = {}
    settings = to_dict(config)
    for key in known_keys():
        section, _, name = key.partition(".")
        value = settings[section].get(name)
        values = value if isinstance(value, list) else [value]
        own = [str(one) for one in values if isinstance(one, ImportName)]
        if own:
            names[key] = own
    for name, player in Players.of(config.players).settings.items():
        if player.who.startswith("scripted:"):
            names[f"players.{name}"] = [player.who]
    return names


def _signature(recipe: dict[str, Any]) -> str:
    """The signature of a recipe; empty if there is no key, and resuming then needs `trust`."""
    try:
        return signature(json.dumps(recipe, sort_keys=True).encode(), signing_key())
    except RecordError:
        return ""


@dataclass
class StoppedRun:
    """A run that can be resumed."""

    run: RunFolder
    config: ConfigStore
    parts: dict[str, Any]
    """What it is made of, by the arguments of `RayPPOTrainer`."""
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


def reopen(
    run_folder: str | Path, given: Mapping[str, Any], overrides: Sequence[str] = (), *, trust: bool = False
) -> StoppedRun:
    """Open a run that stopped, hold it, and remove from its folder what came after its newest good checkpoint.

    Args:
        run_folder: The run's folder.
        given: Parts that the caller passes again, by the arguments of `RayPPOTrainer.resume`; those that are missing or
            None are imported by their names.
        overrides: Settings to change.
        trust: Whether to load what this user's turnsmith did not write.

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


def _rewound(
    run: RunFolder, lock: RunLock, given: Mapping[str, Any], overrides: Sequence[str], *, trust: bool
) -> StoppedRun:
    recipe = Recipe.read(run.path, trust=trust)
    config = load(run.path / "config.yaml")
    recipe.check_extensions(config, run.path, trust=trust)
    training = config.training
    planned = (training.num_epochs, training.steps_per_epoch)
    apply_overrides(config, overrides)
    parts = _parts(run, recipe, given, config)
    dataset = parts["dataset"] = load_dataset(run.path, parts.pop("curriculum"))
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
    stopped = StoppedRun(run, config, parts, recipe, lock, checkpoint, warnings)
    rewind(run, stopped.step)
    run.append_event(
        EventKind.RESUMED, step=stopped.step, overrides=list(overrides), warnings=warnings, **this_process()
    )
    return stopped


def _parts(run: RunFolder, recipe: Recipe, given: Mapping[str, Any], config: ConfigStore) -> dict[str, Any]:
    given = {part: value for part, value in given.items() if value is not None}
    lost = {part: what for part, what in recipe.nameless.items() if part not in given}
    if lost:
        listed = " and ".join(f"its {part} ({what})" for part, what in lost.items())
        raise RecordError(
            f"{run.path} cannot be resumed from its folder alone: {listed} cannot be imported by a name. From Python, "
            f"RayPPOTrainer.resume({str(run.path)!r}, {', '.join(f'{part}=...' for part in lost)}).fit() resumes it; "
            "defined at the top level of a module, `turnsmith resume` finds it."
        )
    for folder in reversed(recipe.import_path):
        add_to_path(folder)
    found = {part: given[part] if part in given else recipe.load(part) for part in PARTS}
    found["environment"] = given["environment"] if "environment" in given else _environment(recipe, config)
    if "validation" in given:
        return {**found, "validation": given["validation"]}
    return {**found, "validation": _validation(run, recipe, config, found["environment"])}


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
