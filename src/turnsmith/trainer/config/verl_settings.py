"""verl's own settings: its defaults, composed by hydra, and the `verl:` section of our config with what a user may
override in them. Does not import verl, whose YAML files are read from where it is installed.

A key that turnsmith sets itself is refused, with the setting of ours that determines it. There is no table for that:
each setting of ours is changed in turn, and the keys whose values then differ are the ones it determines. Keys that
have no effect in a run of ours are refused too; those are in `verl_keys.yaml`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from turnsmith.config import ConfigStore
from turnsmith.config_sources import from_dict, known_keys
from turnsmith.errors import ConfigError, MissingDependency
from turnsmith.importing import install_line
from turnsmith.records.yaml_text import parse_yaml


@cache
def defaults() -> Any:
    """verl's default config, as hydra composes it. Do not modify it."""
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependency(
            f"verl is not installed: {install_line('cpu')} (on a GPU machine: {install_line('vllm')})."
        )
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    GlobalHydra.instance().clear()
    folder = Path(spec.submodule_search_locations[0]) / "trainer" / "config"
    with initialize_config_dir(config_dir=str(folder), version_base=None):
        return hydra_compose(config_name="ppo_trainer")


def compose(keys: dict[str, Any]) -> Any:
    """verl's default config with `keys` set; a key that verl does not have is a ConfigError."""
    config = deepcopy(defaults())  # first, because it says what to install if nothing is
    from omegaconf import OmegaConf, open_dict
    from omegaconf.errors import OmegaConfBaseException

    for name, value in keys.items():
        key = name.removeprefix("+")
        try:
            if name.startswith("+"):
                with open_dict(config):
                    OmegaConf.update(config, key, value, force_add=True)
            else:
                OmegaConf.update(config, key, value, merge=False)
        except OmegaConfBaseException as error:
            raise ConfigError(f"verl does not accept {value!r} for {key!r}: {str(error).splitlines()[0]}") from error
    return config


@cache
def known_names() -> tuple[str, ...]:
    """The dotted names of all of verl's settings, sections included."""
    from omegaconf import OmegaConf

    names: list[str] = []

    def collect(section: Any, prefix: str) -> None:
        if isinstance(section, dict):
            for name, value in section.items():
                names.append(f"{prefix}{name}")
                collect(value, f"{prefix}{name}.")

    collect(OmegaConf.to_container(defaults(), resolve=False), "")
    return tuple(names)


_MAY_BE_SET = frozenset(("actor_rollout_ref.rollout.max_num_batched_tokens",))
"""Keys of ours that a run does not rely on."""
OwnKeys = Callable[[ConfigStore], dict[str, Any]]
"""From our settings to every key of verl that turnsmith sets."""


def checked_verl_section(config: ConfigStore, own: OwnKeys) -> dict[str, Any]:
    """The user's overrides of verl's settings, by dotted name.

    Raises:
        ConfigError: verl has no such setting, turnsmith sets it, or it would have no effect.
    """
    section = from_dict({"verl": config.verl}).verl  # flat, also where it was set as nested dictionaries
    set_by_us = own(config) if section else {}
    for name in section:
        ours = _overlap(name, set_by_us)
        if ours and ours not in _MAY_BE_SET:
            raise ConfigError(_overwritten(name, ours, fields_behind(ours, config, own)))
        kind, row = what_becomes_of(name.removeprefix("+"))
        if kind == "refused":
            raise ConfigError(f"verl.{name} {verl_key_table()['refused'][row]}")
        if not name.startswith("+") and name not in known_names():
            raise ConfigError(_unknown(name, config, own))
    return section


@cache
def verl_key_table() -> dict[str, dict[str, Any]]:
    """What becomes of verl's settings that turnsmith does not set itself: `verl_keys.yaml`."""
    return parse_yaml((Path(__file__).parent / "verl_keys.yaml").read_text(encoding="utf-8"))


def what_becomes_of(name: str) -> tuple[str, str]:
    """The kind (`refused`, `passed_whole`, `passed`) and the row of the table that a setting of verl falls under.

    Two empty strings if it falls under none.
    """
    for kind, rows in verl_key_table().items():
        fitting = [row for row in rows if fnmatchcase(name, row) or fnmatchcase(name, f"{row}.*")]
        if fitting:
            return kind, max(fitting, key=len)
    return "", ""


def fields_behind(key: str, config: ConfigStore, own: OwnKeys) -> list[str]:
    """Our settings that determine `key`: those that change it and the least else; none if it never changes."""
    now = own(config)
    reach: dict[str, int] = {}
    for name in known_keys():
        for other in _changed(config, name):
            then = own(other)
            changed = {each for each in now.keys() | then.keys() if now.get(each) != then.get(each)}
            if key in changed:
                reach[name] = min(len(changed), reach.get(name, len(changed)))
    return [name for name, count in reach.items() if count == min(reach.values())]


def _changed(config: ConfigStore, name: str) -> Iterator[ConfigStore]:
    """The same settings with other values of `name`."""
    section, _, field = name.partition(".")
    if section == "environment":  # it belongs to the user, and nothing of it reaches verl
        return
    part = getattr(config, section)
    kind = get_type_hints(type(part))[field]
    # A failure policy is a string of its own form.
    policies = ["drop"] if section == "failures" and kind is str else None
    for other in policies or _other_values(getattr(part, field), kind):
        yield replace(config, **{section: replace(part, **{field: other})})


def _other_values(value: Any, kind: Any) -> list[Any]:
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    choices = [choice for one in members if get_origin(one) is Literal for choice in get_args(one)]
    if choices:
        return [choice for choice in choices if choice != value]
    if value is None:
        return {bool: [True], int: [0, 1, 16], float: [0.5], str: ["another"]}[get_args(kind)[0]]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [2 * value, max(1, value // 2)]
    if isinstance(value, float):
        return [value + 0.5]
    return [["tensorboard"] if isinstance(value, list) else "another"]


def _overlap(name: str, own: dict[str, Any]) -> str | None:
    """The key of ours that a name of verl equals, is inside of, or contains."""
    wanted = name.removeprefix("+")
    for ours in own:
        key = ours.removeprefix("+")
        if f"{wanted}.".startswith(f"{key}.") or f"{key}.".startswith(f"{wanted}."):
            return ours
    return None


def _overwritten(name: str, ours: str, fields: list[str]) -> str:
    key = ours.removeprefix("+")
    within = "" if name.removeprefix("+") == key else f" ({key})"
    if fields:
        return f"verl.{name} is set by turnsmith{within}: use {' or '.join(fields)} instead."
    return (
        f"verl.{name} is set by turnsmith{within}, which relies on its value, and cannot be overridden: leave it out."
    )


def _unknown(name: str, config: ConfigStore, own: OwnKeys) -> str:
    closest = _closest(name)
    hint = ""
    if closest:
        fields = fields_behind(closest, config, own)
        hint = f" Did you mean {closest!r}?" + (f" Then use {' or '.join(fields)}." if fields else "")
    return f"verl has no setting {name!r}.{hint} `turnsmith train ... --dry-run` prints all of its settings."


def _closest(name: str) -> str | None:
    names = known_names()
    ending = [known for known in names if known.endswith(f".{name}")]
    close = ending or get_close_matches(name, names, n=1, cutoff=0.7)
    if not close:
        leaf = name.rpartition(".")[2]
        close = [known for known in names if known.rpartition(".")[2] == leaf]
    return close[0] if close else None
