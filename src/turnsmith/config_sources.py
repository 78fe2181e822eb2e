"""Reads settings from YAML files, dictionaries and command lines into a `ConfigStore`, and writes them out again.

A name that no setting has is an error which names the closest one that exists; a value of the wrong type is an error
as well. Two places are open: `environment` takes any name, because it belongs to the user, and `verl` takes dotted
names that only verl can judge.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, cast, get_args, get_type_hints

from turnsmith.config import ConfigStore, EnvironmentConfig
from turnsmith.errors import ConfigError
from turnsmith.records.yaml_text import YamlProblem, parse_yaml

_OPEN_SECTIONS = ("environment", "verl")


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
        raise ConfigError(f"The config file {path} must hold sections such as `training:`, not a {_kind(tree)}.")
    try:
        return from_dict(cast("dict[str, Any]", tree))
    except ConfigError as error:
        raise ConfigError(f"In {path}: {error}") from None


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
            raise ConfigError(f"{section} is a section and needs settings in it, not a {_kind(settings)}.")
        for name, value in cast("Mapping[Any, Any]", settings).items():
            _set(config, section, str(name), value)
    return config


def to_dict(config: ConfigStore) -> dict[str, dict[str, Any]]:
    """All settings as nested dictionaries, defaults included; a misspelt attribute is an error here too.

    Example:
        >>> config = ConfigStore()
        >>> config.verl["trainer.balance_batch"] = False
        >>> to_dict(config)["verl"]
        {'trainer.balance_batch': False}
        >>> config.training.learning_rat = 1e-3
        >>> to_dict(config)
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: There is no setting training.learning_rat. Did you mean training.learning_rate?
    """
    tree: dict[str, dict[str, Any]] = {}
    for name in vars(config):
        if name not in _section_names():
            raise ConfigError(_unknown(name))
    for section in _section_names():
        value = getattr(config, section)
        if isinstance(value, EnvironmentConfig):
            tree[section] = _copied(value.as_dict())
        elif isinstance(value, Mapping):
            tree[section] = _copied(value)
        elif section in _OPEN_SECTIONS:  # The user put a config class of their own here.
            tree[section] = _copied(vars(value))
        else:
            tree[section] = {name: _checked(section, name, setting) for name, setting in vars(value).items()}
    return tree


def apply_overrides(config: ConfigStore, overrides: Sequence[str]) -> ConfigStore:
    """Set `section.name=value` texts, as from a command line, in `config` itself; also returns it. The last one wins.

    Values are written as in YAML: `true`, `3`, `1e-4`, `[1, 2]`, `null`; anything else is text.

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
    """The dotted names of all settings with a fixed place, in the order of the config."""
    return [f"{section}.{name}" for section in _section_names() for name in _settings(section)]


def _set(config: ConfigStore, section: str, name: str, value: Any) -> None:
    """Set one setting, checked; `name` may be dotted in the two open sections."""
    if section == "verl":
        config.verl.update(_flatten(name, value))
    elif section == "environment":
        _set_environment(config.environment, name, value)
    else:
        setattr(getattr(config, section), name, _checked(section, name, value))


def _checked(section: str, name: str, value: Any) -> Any:
    settings = _settings(section)
    if name not in settings:
        raise ConfigError(_unknown(f"{section}.{name}"))
    return _coerce(f"{section}.{name}", value, settings[name])


def _copied(value: Any) -> Any:
    """A copy of the containers only: what a user put into them may not be copyable."""
    if isinstance(value, Mapping):
        return {name: _copied(item) for name, item in cast("Mapping[Any, Any]", value).items()}
    return [_copied(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value


def _set_environment(environment: EnvironmentConfig, name: str, value: Any) -> None:
    first, *rest = name.split(".")
    fixed = _settings("environment")
    is_taken = hasattr(EnvironmentConfig, first) and first not in fixed
    if not first.isidentifier() or first.startswith("_") or is_taken or (first in fixed and rest):
        raise ConfigError(f"environment.{name} cannot be used as a setting: {first!r} is not free for a name.")
    if first in fixed:
        value = _coerce(f"environment.{first}", value, fixed[first])
    if not rest:
        setattr(environment, first, value)
        return
    holder: Any = vars(environment).setdefault(first, {})
    for part in rest[:-1]:
        holder = cast("dict[str, Any]", holder).setdefault(part, {}) if isinstance(holder, dict) else None
    if not isinstance(holder, dict):
        raise ConfigError(f"environment.{name} cannot be set: a part of that name already holds a single value.")
    holder[rest[-1]] = value


def _flatten(name: str, value: Any) -> dict[str, Any]:
    """`("a", {"b": {"c": 1}})` becomes `{"a.b.c": 1}`."""
    if not isinstance(value, Mapping) or not value:
        return {name: value}
    flat: dict[str, Any] = {}
    for inner, item in cast("Mapping[Any, Any]", value).items():
        flat.update(_flatten(f"{name}.{inner}", item))
    return flat


def _read_value(section: str, name: str, text: str) -> Any:
    """The value a command-line text stands for; a setting that is text is taken as it was typed."""
    value = _read_scalar(text)
    expected = _settings(section).get(name)
    allowed = get_args(expected) if isinstance(expected, UnionType) else (expected,)
    if str in allowed and not isinstance(value, str) and not (value is None and NoneType in allowed):
        return text
    return value


def _read_scalar(text: str) -> Any:
    """YAML's reading where it is a number, true, false, null, quoted, `[...]` or `{...}`; else the text itself.

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
    """`value` as the type that the setting `key` has, if nothing is lost by it."""
    allowed = get_args(expected) if isinstance(expected, UnionType) else (expected,)
    if value is None and NoneType in allowed:
        return None
    if isinstance(value, int) and value.bit_length() > 63:  # neither a float nor anything that verl is given holds it
        raise ConfigError(f"{key} is too large a number.")
    if isinstance(value, Path) and str in allowed:
        return str(value)
    for kind in allowed:
        if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            if not math.isfinite(value):
                raise ConfigError(f"{key} must be a finite number, not {value}.")
            return float(value)
        if kind is int and isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1:
            return int(value)
        if kind in (str, bool) and isinstance(value, kind):
            return value
        if kind == list[str] and (texts := _texts(value)) is not None:
            return texts
    wanted = " or ".join(_WORDS[kind] for kind in allowed)
    hint = " Put it in quotes." if str in allowed and not isinstance(value, dict | list) else ""
    raise ConfigError(f"{key} must be {wanted}, not {value!r} ({_kind(value)}).{hint}")


def _texts(value: Any) -> list[str] | None:
    """`value` as a new list of texts, of which one alone may stand without a list; None if it is not that."""
    items: list[Any] = cast("list[Any]", list(value)) if isinstance(value, list | tuple) else [value]
    return items if all(isinstance(item, str) for item in items) else None


_WORDS: dict[Any, str] = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
_WORDS.update({NoneType: "null", list[str]: "a list of texts"})


def _kind(value: Any) -> str:
    words = {bool: "true/false value", int: "whole number", float: "number", str: "text", list: "list", dict: "section"}
    return words.get(type(value), "null" if value is None else type(value).__name__)


def _section_names() -> tuple[str, ...]:
    return tuple(item.name for item in fields(ConfigStore))


@cache
def _settings(section: str) -> dict[str, Any]:
    """Name and type of each setting in a section; of an open section, only the ones that are fixed."""
    kind = get_type_hints(ConfigStore)[section]
    return dict(get_type_hints(kind)) if is_dataclass(kind) or kind is EnvironmentConfig else {}


def _unknown(key: str) -> str:
    """The sentence for a setting that does not exist, with the closest one that does."""
    section, _, name = key.partition(".")
    if not name and section in _section_names():
        return f"{section} is a section: set one of its settings, as in {section}.name=value."
    closest = _closest(key)
    if closest:
        return f"There is no setting {key}. Did you mean {closest}?"
    if name and section in _section_names():
        return f"There is no setting {key}. Settings of {section}: {', '.join(_settings(section))}."
    return f"There is no setting {key}. Sections: {', '.join(_section_names())}."


def _closest(key: str) -> str | None:
    """The known name that the user most likely meant: misspelt, abbreviated (`lr`), or put into the wrong section."""
    known = known_keys()
    section, _, name = key.rpartition(".")
    own = [item for item in known if item.startswith(f"{section}.")]
    leaf = {item: item.rpartition(".")[2] for item in known}
    for candidates in (own, known):
        for item in candidates:
            words = leaf[item].split("_")
            if leaf[item] == name or (len(words) > 1 and "".join(word[0] for word in words) == name):
                return item
    if own:
        close = get_close_matches(name, [leaf[item] for item in own], n=1, cutoff=0.6)
        if close:
            return f"{section}.{close[0]}"
    if not name or not section:
        close = get_close_matches(key, _section_names(), n=1, cutoff=0.7)
        if close:
            return close[0]
    close = get_close_matches(key, known, n=1, cutoff=0.75)
    if not close:
        by_leaf = get_close_matches(name, list(leaf.values()), n=1, cutoff=0.75)
        close = [item for item in known if by_leaf and leaf[item] == by_leaf[0]]
    return close[0] if close else None
