"""Reads settings from YAML files, dictionaries and command lines into a `ConfigStore`, and writes them out again.

An unknown setting is an error that suggests the closest one; so is a value of the wrong type. Three sections are open:
`environment` takes any name, because it belongs to the user, `players` the names that the environment has for them, and
`verl` dotted names that only verl knows.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from turnsmith.config import AtLeast, Between, ConfigStore, EnvironmentConfig, ImportName, known_elsewhere
from turnsmith.errors import ConfigError
from turnsmith.importing import absolute_name
from turnsmith.records.yaml_text import YamlProblem, parse_yaml

logger = logging.getLogger(__name__)
_SCRIPT = "scripted:"
_OPEN_SECTIONS = ("environment", "players", "verl", "verl_unchecked")
_EARLIER: dict[str, tuple[str, Any]] = {
    "environment.isolation_token_file": ("environment.token_file", ""),
    "environment.threads": ("", 0),
    "failures.overload": ("failures.worker", "retry:8"),
    "failures.timeout": ("failures.environment", "retry:2"),
    "inference.max_turn_tokens": ("inference.max_tokens", None),
    "training.kl_target": ("", None),
    "training.min_lr_ratio": ("", 0.0),
    "training.plan": ("", None),
    "training.stragglers": ("", "wait"),
    "training.warmup_ratio": ("training.warmup_steps", 0.0),
}
"""Settings of earlier versions: the one that has its value now, if one has, and the value that needs none."""
_VERL_SECTIONS = ("actor_rollout_ref", "algorithm", "critic", "data", "trainer")


def load(path: str | Path) -> ConfigStore:
    """Read a YAML file; what it does not set keeps its default.

    Raises:
        ConfigError: The file is missing, is not YAML, or sets something that does not exist.
    """
    path = Path(path)
    try:
        tree = parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"There is no config file {path}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The config file {path} cannot be read: {error}") from None
    except YamlProblem as problem:
        raise ConfigError(f"The config file {path} is not valid YAML: {problem}") from None
    if tree is None:
        return ConfigStore()
    if not isinstance(tree, dict):
        raise ConfigError(f"The config file {path} must hold sections such as `training:`, not {_kind(tree)}.")
    try:
        return from_dict(_without_earlier(cast("dict[str, Any]", tree), path))
    except ConfigError as error:
        raise ConfigError(f"In {path}: {error}") from None


def _without_earlier(tree: dict[str, Any], path: Path) -> dict[str, Any]:
    """The tree without settings that only earlier versions had; what changes by that is logged."""
    for key, (instead, neutral) in _EARLIER.items():
        section, _, name = key.partition(".")
        settings = tree.get(section)
        value = settings.pop(name, neutral) if isinstance(settings, dict) else neutral
        if value == neutral:
            continue
        if instead:
            section, _, name = instead.partition(".")
            tree.setdefault(section, {})[name] = value
        logger.warning("%s has %s=%s, a setting of an earlier version. %s", path, key, value, _instead_of(key))
    return tree


def _instead_of(key: str) -> str:
    """What became of a setting of earlier versions, as a sentence."""
    instead, default = _EARLIER[key]
    if instead:
        return f"It is part of {instead} now."
    return f"It was removed; every run now has what was its default, {'null' if default is None else default}."


def from_dict(tree: Mapping[str, Any]) -> ConfigStore:
    """Build a config from nested dictionaries, as `to_dict` makes them.

    Example:
        >>> config = from_dict({"training": {"batch_size": 4}, "environment": {"size": 3}})
        >>> config.training.batch_size, config.environment.size
        (4, 3)
        >>> from_dict({"training": {"batchsize": 4}})
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: There is no setting training.batchsize. Did you mean training.batch_size?
    """
    config = ConfigStore()
    for section, settings in tree.items():
        if section not in _section_names():
            raise ConfigError(_unknown(str(section)))
        if settings is None:  # An empty section in YAML.
            continue
        if not isinstance(settings, Mapping):
            raise ConfigError(f"{section} is a section and needs settings in it, not {_kind(settings)}.")
        for name, value in cast("Mapping[Any, Any]", settings).items():
            _set(config, section, str(name), value)
    return config


def to_dict(config: ConfigStore) -> dict[str, dict[str, Any]]:
    """All settings as nested dictionaries, defaults included; a value of the wrong type is an error here too.

    Example:
        >>> config = ConfigStore()
        >>> config.verl["trainer.critic_warmup"] = 5
        >>> to_dict(config)["verl"]
        {'trainer.critic_warmup': 5}
        >>> config.training.adv_estimator = "gpro"
        >>> to_dict(config)
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: training.adv_estimator must be one of grpo, dr_grpo, grpo_passk, rloo, opo, \
reinforce_plus_plus, reinforce_plus_plus_baseline, gae, or module:name of your own, not 'gpro'. Did you mean grpo?
    """
    tree: dict[str, dict[str, Any]] = {}
    for section in _section_names():
        value = getattr(config, section)
        if isinstance(value, EnvironmentConfig):
            tree[section] = _copied(value.as_dict())
        elif isinstance(value, Mapping):
            tree[section] = _copied(value)
        elif section in _OPEN_SECTIONS:  # The user put a config class of their own here.
            tree[section] = _copied(vars(value))
        else:
            tree[section] = {name: _checked(section, name, getattr(value, name)) for name in vars(value)}
    return tree


def apply_overrides(config: ConfigStore, overrides: Sequence[str]) -> ConfigStore:
    """Apply `section.name=value` overrides, as from a command line, to `config` itself; also returns it.

    The last one wins. Values are written as in YAML: `true`, `3`, `1e-4`, `[1, 2]`, `null`; anything else is a string.

    Example:
        >>> config = apply_overrides(ConfigStore(), ["training.learning_rate=1e-4", "environment.map.size=3"])
        >>> config.training.learning_rate, config.environment.map
        (0.0001, {'size': 3})
    """
    for override in overrides:
        key, equals, text = override.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ConfigError(
                f"{override!r} is not an override: write section.name=value, as in training.batch_size=8."
            )
        section, dot, name = key.partition(".")
        if section not in _section_names() or not dot or not name:
            raise ConfigError(_unknown(key))
        _set(config, section, name, _read_value(section, name, text))
    return config


def known_keys() -> list[str]:
    """The dotted names of all built-in settings, in the order of the config."""
    return [f"{section}.{name}" for section in _section_names() for name in _settings(section)]


def _set(config: ConfigStore, section: str, name: str, value: Any) -> None:
    """Set one setting, validated; `name` may be dotted in the two open sections."""
    if f"{section}.{name}" in _EARLIER:  # in an open section as well: files of earlier versions have it
        raise ConfigError(_unknown(f"{section}.{name}"))
    if section in ("verl", "verl_unchecked"):
        getattr(config, section).update(_flatten(name, value))
    elif section == "environment":
        _set_environment(config.environment, name, value)
    elif section == "players":
        _set_player(config.players, name, value)
    else:
        setattr(getattr(config, section), name, _checked(section, name, value))


def _checked(section: str, name: str, value: Any) -> Any:
    settings = _settings(section)
    if name not in settings:
        raise ConfigError(_unknown(f"{section}.{name}"))
    value, bound = _coerce(f"{section}.{name}", value, settings[name]), _bounds(section).get(name)
    if bound is not None and value is not None and not bound.allows(value):
        raise ConfigError(f"{section}.{name}={value:g} must be {bound}.")
    return value


def _copied(value: Any) -> Any:
    """A copy of the containers only: what a user put in them may not be copyable."""
    if isinstance(value, Mapping):
        return {name: _copied(item) for name, item in cast("Mapping[Any, Any]", value).items()}
    return [_copied(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value


def _set_environment(environment: EnvironmentConfig, name: str, value: Any) -> None:
    first, *rest = name.split(".")
    fixed = _settings("environment")
    is_taken = first in vars(EnvironmentConfig) and first not in fixed
    if not first.isidentifier() or first.startswith("_") or is_taken or (first in fixed and rest):
        raise ConfigError(f"environment.{name} cannot be used as a setting: {first!r} is reserved.")
    if first in fixed:
        value = _coerce(f"environment.{first}", value, fixed[first])
    if not rest:
        setattr(environment, first, value)
        return
    holder: Any = vars(environment).setdefault(first, {})
    for part in rest[:-1]:
        holder = cast("dict[str, Any]", holder).setdefault(part, {}) if isinstance(holder, dict) else None
    if not isinstance(holder, dict):
        raise ConfigError(f"environment.{name} cannot be set: part of that name already holds a single value.")
    holder[rest[-1]] = value


def _set_player(players: dict[str, Any], name: str, value: Any) -> None:
    """Set who plays a player, or with a dotted name another setting of it; a script gets a name for every folder."""
    player, dot, setting = name.partition(".")
    if isinstance(value, Mapping) and not dot:
        for inner, item in cast("Mapping[Any, Any]", value).items():
            _set_player(players, f"{player}.{inner}", item)
        return
    if isinstance(value, str) and value.startswith(_SCRIPT):
        value = _SCRIPT + absolute_name(value.removeprefix(_SCRIPT))
    before = players.get(player)
    if not dot and not isinstance(before, Mapping):
        players[player] = value
    else:
        more = cast("Mapping[str, Any]", before) if isinstance(before, Mapping) else {"who": before} if before else {}
        players[player] = {**more, setting or "who": value}


def _flatten(name: str, value: Any) -> dict[str, Any]:
    """`("a", {"b": {"c": 1}})` becomes `{"a.b.c": 1}`."""
    if not isinstance(value, Mapping) or not value:
        return {name: value}
    flat: dict[str, Any] = {}
    for inner, item in cast("Mapping[Any, Any]", value).items():
        flat.update(_flatten(f"{name}.{inner}", item))
    return flat


def _read_value(section: str, name: str, text: str) -> Any:
    """The value of a text on the command line; a setting that is a string takes the text as it was typed."""
    value = _read_scalar(text)
    allowed = _members(_settings(section).get(name))
    if str in allowed and not isinstance(value, str) and not (value is None and NoneType in allowed):
        return text
    return value


def _read_scalar(text: str) -> Any:
    """Parse the text as YAML if it is a number, true, false, null, quoted, `[...]` or `{...}`; else return it as it is.

    Block YAML would turn the sentence `Note: be short` into a section and lose what follows a ` #`.
    """
    try:
        value = parse_yaml(text)
    except YamlProblem:
        return text
    opening = text.lstrip()[:1]
    if isinstance(value, str):
        return value if opening in ("'", '"') else text
    if isinstance(value, dict | list):
        return value if opening in ("{", "[") else text
    return text if value is None and text.strip() not in ("null", "~") else value


def _coerce(key: str, value: Any, expected: Any) -> Any:
    """`value` as the type of the setting `key`, if nothing is lost by the conversion."""
    allowed = _members(expected)
    if value is None and NoneType in allowed:
        return None
    if isinstance(value, int) and value.bit_length() > 63:  # neither a float nor anything that verl is given holds it
        raise ConfigError(f"{key} is too large a number.")
    if isinstance(value, Path):
        value = str(value)
    for kind in allowed:
        converted = _convert(key, value, kind)
        if converted is not None:
            return converted
    raise ConfigError(f"{key} must be {_described(allowed)}, not {value!r}{_hint(value, allowed)}")


def _convert(key: str, value: Any, kind: Any) -> Any:
    """`value` as one type; None if it is of another."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is float and is_number:
        if not math.isfinite(value):
            raise ConfigError(f"{key} must be a finite number, not {value}.")
        return float(value)
    if kind is int:
        return int(value) if is_number and value == value // 1 else None
    if kind is ImportName:
        return ImportName(absolute_name(value)) if isinstance(value, str) and ":" in value else None
    if get_origin(kind) is Literal:
        return value if value in get_args(kind) else None
    if get_origin(kind) is list:
        items = cast("list[Any]", list(value)) if isinstance(value, list | tuple) else [value]
        return [_coerce(key, item, get_args(kind)[0]) for item in items]
    return value if kind in (str, bool) and isinstance(value, kind) else None


def _members(expected: Any) -> tuple[Any, ...]:
    """The types that a setting takes, without the union around them."""
    return get_args(expected) if get_origin(expected) in (Union, UnionType) else (expected,)


def _described(allowed: tuple[Any, ...]) -> str:
    names = [
        f"one of {', '.join(get_args(kind))}" if get_origin(kind) is Literal else _TYPE_NAMES[get_origin(kind) or kind]
        for kind in allowed
    ]
    return ", or ".join(names) if any(get_origin(kind) is Literal for kind in allowed) else " or ".join(names)


def _hint(value: Any, allowed: tuple[Any, ...]) -> str:
    choices = [choice for kind in allowed if get_origin(kind) is Literal for choice in get_args(kind)]
    if choices:
        close = get_close_matches(str(value), choices, n=1)
        return f". Did you mean {close[0]}?" if close else "."
    return f" ({_kind(value)})." + (
        " Put it in quotes." if str in allowed and not isinstance(value, dict | list) else ""
    )


_TYPE_NAMES: dict[Any, str] = {
    int: "an integer",
    float: "a number",
    str: "a string",
    bool: "true or false",
    NoneType: "null",
    list: "a list",
    ImportName: "module:name of your own",
}


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return "a section"
    return "null" if value is None else _TYPE_NAMES.get(type(value), type(value).__name__)


def _section_names() -> tuple[str, ...]:
    return tuple(item.name for item in fields(ConfigStore))


@cache
def _settings(section: str) -> dict[str, Any]:
    """Name and type of each setting in a section; of an open section, only the built-in ones."""
    kind = get_type_hints(ConfigStore)[section]
    return dict(get_type_hints(kind)) if is_dataclass(kind) or kind is EnvironmentConfig else {}


@cache
def _bounds(section: str) -> dict[str, AtLeast | Between]:
    """The bound of each setting in a section that has one."""
    hints = get_type_hints(get_type_hints(ConfigStore)[section], include_extras=True)
    return {name: get_args(hint)[1] for name, hint in hints.items() if get_origin(hint) is Annotated}


def _unknown(key: str) -> str:
    """The error for an unknown setting, with the closest one that exists."""
    section, _, name = key.partition(".")
    if key in _EARLIER:
        return f"There is no setting {key}. {_instead_of(key)}"
    if not name and section in _section_names():
        return f"{section} is a section: set one of its settings, as in {section}.name=value."
    leaf = name.rpartition(".")[2]
    is_verls = section in _VERL_SECTIONS and not any(known.endswith(f".{leaf}") for known in known_keys())
    if hint := known_elsewhere(key) or (f"To set one of verl's own, write verl.{key}." if is_verls else ""):
        return f"There is no setting {key}. {hint}"
    closest = _closest(key)
    if closest:
        return f"There is no setting {key}. Did you mean {closest}?"
    if name and section in _section_names():
        return f"There is no setting {key}. Settings of {section}: {', '.join(_settings(section))}."
    return f"There is no setting {key}. Sections: {', '.join(_section_names())}."


def _closest(key: str) -> str | None:
    """The setting that the user most likely meant: misspelt, abbreviated (`lr`), or put into the wrong section."""
    section, _, name = key.rpartition(".")
    known = sorted(known_keys(), key=lambda item: not item.startswith(f"{section}."))  # the same section first
    leaf = {item: item.rpartition(".")[2] for item in known}
    for item in known:
        initials = "".join(word[0] for word in leaf[item].split("_"))
        if name == leaf[item] or (len(initials) > 1 and name == initials):
            return item
    own = [leaf[item] for item in known if item.startswith(f"{section}.")]
    if close := get_close_matches(name, own, n=1):
        return f"{section}.{close[0]}"
    sections = () if section in _section_names() else _section_names()
    if close := get_close_matches(key, [*sections, *known], n=1, cutoff=0.75):
        return close[0]
    close = get_close_matches(name, list(leaf.values()), n=1, cutoff=0.75)
    return next((item for item in known if close and leaf[item] == close[0]), None)
