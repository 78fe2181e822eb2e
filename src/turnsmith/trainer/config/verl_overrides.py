"""The `verl:` section of our config: which names of verl a user may set, and what to say about the others.

A name that turnsmith sets itself is refused with the setting of ours that it follows. No table is kept for that: each
setting of ours is changed in turn, and the names whose values then differ are the ones that follow it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, get_args, get_type_hints

from turnsmith.config import ConfigStore
from turnsmith.config_sources import from_dict, known_keys
from turnsmith.errors import ConfigError
from turnsmith.trainer.config.verl_defaults import known_names

OwnKeys = Callable[[ConfigStore], dict[str, Any]]
"""From settings to every key of verl that turnsmith sets for them."""


def checked_verl_section(config: ConfigStore, own: OwnKeys) -> dict[str, Any]:
    """The user's settings of verl by dotted name.

    Raises:
        ConfigError: verl has no such name, or turnsmith sets it.
    """
    section = from_dict({"verl": config.verl}).verl  # flat, also where it was set as nested dictionaries
    for name in section:
        ours = _overlap(name, own(config))
        if ours:
            raise ConfigError(_overwritten(name, ours, fields_behind(ours, config, own)))
        if not name.startswith("+") and name not in known_names():
            raise ConfigError(_unknown(name, config, own))
    return section


def fields_behind(key: str, config: ConfigStore, own: OwnKeys) -> list[str]:
    """Our settings that decide over `key`: those that change it and least else; none if it is always the same."""
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
    """The same settings with other values of the one called `name`."""
    section, _, field = name.partition(".")
    if section == "environment":  # It belongs to the user; verl hears nothing of it.
        return
    part = getattr(config, section)
    kind = get_type_hints(type(part))[field]
    # A policy is a text in a form of its own, which "another" has not.
    policies = ["drop"] if section == "failures" and kind is str else None
    for other in policies or _other_values(getattr(part, field), kind):
        yield replace(config, **{section: replace(part, **{field: other})})


def _other_values(value: Any, kind: Any) -> list[Any]:
    if value is None:
        return {int: [1, 16], float: [0.5], str: ["another"]}[get_args(kind)[0]]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [2 * value, max(1, value // 2)]
    if isinstance(value, float):
        return [value + 0.5]
    return [["another"] if isinstance(value, list) else "another"]


def _overlap(name: str, own: dict[str, Any]) -> str | None:
    """The key of ours that a name of verl is, lies in or holds."""
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
        return f"verl.{name} is set by turnsmith{within} and would be overwritten: use {' or '.join(fields)} instead."
    return f"verl.{name} is set by turnsmith{within}, which relies on its value, and cannot be changed: leave it out."


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
