"""What a run was made from, and how its folder keeps that: settings, dataset, and the names of the user's own code.

`resume.json` names everything that is not in config.yaml, so that `resume` can import it again. Code itself is never
written to a run folder; what has no name to import it by, such as a lambda, has to be passed again from Python.
"""

from __future__ import annotations

import hmac
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from turnsmith.config import ConfigStore, EnvironmentConfig, ImportName
from turnsmith.config_sources import known_keys, to_dict
from turnsmith.env.mix import EnvironmentMix, MixMember
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import RecordError
from turnsmith.importing import import_name
from turnsmith.inference.chat import read_template
from turnsmith.records.files import read_file, write_text
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.run_lock import RunLock
from turnsmith.records.signing_key import signature, signing_key
from turnsmith.rollout.failure_policy import FailurePolicy
from turnsmith.rollout.limits import Limits
from turnsmith.rollout.model_copies import ModelFolder
from turnsmith.rollout.players import POOL, Players
from turnsmith.rollout.spec import RolloutSpec
from turnsmith.tools.parsing import ActionParser
from turnsmith.tools.registry import ToolRegistry
from turnsmith.trainer.config.auto import resolve_dtype
from turnsmith.trainer.config.build import training_sampling
from turnsmith.trainer.dataset import CustomEnvironmentDataset
from turnsmith.trainer.epochs import Epochs
from turnsmith.trainer.validation import Validation

if TYPE_CHECKING:
    from turnsmith.trainer.verl.episode_plan import EpisodePlan

_FILE = "resume.json"


@dataclass(frozen=True)
class RunInputs:
    """Everything that the user passed to the trainer."""

    config: ConfigStore
    environment: EnvironmentSpec
    reward_fn: Callable[..., Any] | None
    dataset: CustomEnvironmentDataset
    tools: ToolRegistry | None
    validation: Validation
    parser: ActionParser | None = None

    def new_folder(self) -> RunFolder:
        """A folder for a new run."""
        checkpoint = self.config.checkpoint
        name = checkpoint.run_name or f"{self.environment.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        return RunFolder.create(Path(checkpoint.output_dir).absolute(), name)

    def episode_plan(self, lock: RunLock, model_path: str) -> EpisodePlan:
        """What the processes that run episodes need to know; `model_path`: where the first model is."""
        from turnsmith.trainer.verl.episode_plan import EpisodePlan

        config, training, run_dir = self.config, self.config.training, str(lock.folder)
        rollout = RolloutSpec(
            environment=self.environment.isolated(),
            limits=Limits.of(config.inference),
            sampling=training_sampling(config),
            reward_fn=self.reward_fn,
            tools=self.tools,
            parser=self.parser,
            players=replace(
                Players.of(config.players),
                first=ModelFolder(
                    model_path, resolve_dtype(config), config.model.trust_remote_code, config.model.chat_template
                ),
                pool=str(Path(run_dir, POOL)),
            ),
            failures=FailurePolicy.of(config.failures),
        )
        return EpisodePlan(
            rollout,
            run_dir,
            lock.token,
            tool_format=config.inference.tool_format,
            thinking=config.inference.thinking,
            chat_template=read_template(config.model.chat_template),
            estimator=training.adv_estimator,
            credit=training.credit,
            filtered_group_size=training.group_size if training.filter_groups else 0,
            curriculum=self.dataset.curriculum,
        )

    def write(self, folder: RunFolder, verl_config: Any, *, is_new: bool) -> None:
        """Write the settings, ours and verl's, and the dataset; a resumed run has its dataset already."""
        from omegaconf import OmegaConf

        self.write_settings(folder)
        folder.write_verl_config(OmegaConf.to_yaml(verl_config))
        if is_new:
            self.dataset.save(folder.path, self.config.training.seed)
        if self.config.evaluation.every:
            self.validation.save(folder.path)

    def write_settings(self, folder: RunFolder) -> None:
        """Write our settings."""
        settings = to_dict(self.config)
        # Not the name of a file, which may have another content when the run is resumed.
        settings["model"]["chat_template"] = read_template(self.config.model.chat_template)
        folder.write_config(settings)

    def write_recipe(self, folder: RunFolder, last_step: int, epochs: Epochs) -> None:
        """Write what else resuming needs."""
        recipe = Recipe(
            last_step,
            epochs.steps,
            epochs.after,
            epochs.first,
            extensions=extensions_in(self.config),
            import_path=list(dict.fromkeys(map(os.path.abspath, ("", *sys.path[:2])))),
        )
        recipe.add_environment(self.environment, self.config.environment)
        recipe.reward_fn = recipe.name("reward_fn", self.reward_fn)
        recipe.curriculum = recipe.name("curriculum", self.dataset.curriculum)
        recipe.add_parser(self.parser)
        if self.tools is not None:
            names = [recipe.name("tools", tool) for tool in self.tools]
            recipe.tools = [name for name in names if name]
        if self.config.evaluation.every and self.validation.environment != self.environment:
            recipe.add_validation(self.validation.environment, self.config.environment)
        recipe.write(folder.path)


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
    reward_fn: str | None = None
    tools: list[str] | None = None
    parser: str | None = None
    """The class of a parser that was passed as an object."""
    curriculum: str | None = None
    validation: str | None = None
    """The environment to evaluate in, where it is not the one to train in."""
    validation_settings: dict[str, Any] | None = None
    extensions: dict[str, list[str]] = field(default_factory=dict)
    """The user's own estimator, parser, trackers and warnings, by the setting in config.yaml that names them."""
    nameless: dict[str, str] = field(default_factory=dict)
    """Parts that cannot be imported again, and what they are."""
    import_path: list[str] = field(default_factory=list)
    """Folders that modules were imported from."""

    @property
    def epochs(self) -> Epochs:
        """Those of the last `fit`."""
        return Epochs(self.steps_in_epoch, self.epochs_after, self.first_epoch)

    def name(self, part: str, value: Any) -> str | None:
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
        self.environment = target if isinstance(target, str) else self.name("environment", target)
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
        self.validation = target if isinstance(target, str) else self.name("validation", target)
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

    def add_parser(self, parser: ActionParser | None) -> None:
        """Note the class of a parser, if an object of it without arguments is the same."""
        if parser is None:
            return
        self.parser = self.name("parser", type(parser))
        try:
            is_default = vars(parser) == vars(type(parser)())
        except TypeError:
            is_default = False
        if self.parser is not None and not is_default:
            self.nameless["parser"] = f"a {type(parser).__name__} with settings of its own"

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
            recipe = cls(**content)
            msgspec.convert(content, cls)
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
    """Empty without a key: then resuming takes trust."""
    try:
        return signature(json.dumps(recipe, sort_keys=True).encode(), signing_key())
    except RecordError:
        return ""
