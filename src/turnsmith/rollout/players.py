"""Who plays the other players of a run: a function, a model behind a server, a copy of the first model, or the model of
the run itself, now and as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from turnsmith.errors import ConfigError
from turnsmith.importing import import_object
from turnsmith.inference.engine import Sampling
from turnsmith.inference.http_client import is_url
from turnsmith.rollout.model_copies import ModelFolder

POOL = "players"
"""The folder of a run's past models, in its run folder."""
_KINDS = ("frozen", "self", "scripted:", "model:")


@dataclass(frozen=True, slots=True)
class PlayerSetting:
    """Who plays a player; `players.NAME=WHO`, or `players.NAME={who: WHO, temperature: 0.5}`."""

    who: str
    """`scripted:module:function`, a URL, `model:NAME`, `frozen` or `self`."""
    model: str | None = None
    """Of a server that has several models, which one."""
    temperature: float | None = None
    """None: as the model that is trained."""
    max_tokens: int | None = None
    """Limit of one answer; None: as the model that is trained."""
    past: float = 0.5
    """With `self`: in which share of the groups a past model plays; in the others, the current one."""
    pool: int = 4
    """With `self`: how many of the newest past models play, besides the first model."""

    def sampling(self, usual: Sampling, seed: int | None) -> Sampling:
        """How its model is sampled."""
        return replace(
            usual,
            temperature=usual.temperature if self.temperature is None else self.temperature,
            max_tokens=usual.max_tokens if self.max_tokens is None else self.max_tokens,
            seed=seed,
        )


@dataclass(frozen=True)
class Players:
    """Who plays each player of a run.

    Example:
        >>> players = Players.of({"user": "http://127.0.0.1:8000/v1", "opponent": {"who": "self", "past": 0.8}})
        >>> players.settings["opponent"].past, players.has_self
        (0.8, True)
        >>> Players.of({"opponent": "frosen"})
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: players.opponent='frosen' is nobody: write scripted:my_file.py:function, a URL, \
model:NAME, frozen or self. Did you mean frozen?
    """

    settings: Mapping[str, PlayerSetting] = field(default_factory=dict[str, PlayerSetting])
    first: ModelFolder | None = None
    """What `frozen` copies; None: the model itself plays, as in an evaluation."""
    pool: str = ""
    """The folder of this run's past models, for `self`."""

    @classmethod
    def of(cls, section: Mapping[str, Any]) -> Players:
        """Read the section `players` of a config."""
        return cls({name: _setting(name, given) for name, given in section.items()})

    def check(self) -> Players:
        """Raise a `ConfigError` if a function cannot be imported; returns itself."""
        for setting in self.settings.values():
            if setting.who.startswith("scripted:"):
                import_object(setting.who.removeprefix("scripted:"))
        return self

    @property
    def has_self(self) -> bool:
        """Whether past models of the run play."""
        return any(setting.who == "self" for setting in self.settings.values())

    def for_evaluation(self) -> Players:
        """The same, but in place of `self` plays the first model: else the opponent would grow with the model."""
        settings = {
            name: replace(setting, who="frozen") if setting.who == "self" else setting
            for name, setting in self.settings.items()
        }
        return replace(self, settings=settings)


def _setting(name: str, given: Any) -> PlayerSetting:
    if isinstance(given, str):
        given = {"who": given}
    fields = PlayerSetting.__dataclass_fields__
    if not isinstance(given, Mapping) or not isinstance(given.get("who"), str) or given.keys() - fields.keys():
        raise ConfigError(f"players.{name}={given!r}: write who plays it, or {{who: ...}} with {', '.join(fields)}.")
    setting, who = PlayerSetting(**given), given["who"]
    if not is_url(who) and who not in ("frozen", "self") and not who.startswith(("model:", "scripted:")):
        close = get_close_matches(who, _KINDS, n=1)
        raise ConfigError(
            f"players.{name}={who!r} is nobody: write scripted:my_file.py:function, a URL, model:NAME, frozen or self."
            + (f" Did you mean {close[0]}?" if close else "")
        )
    if not 0 <= setting.past <= 1 or setting.pool < 0:
        raise ConfigError(f"players.{name}: past is a share from 0 to 1, and pool 0 or more.")
    return setting


def past_models(pool: str | Path) -> Sequence[int]:
    """The steps whose models are in the pool, in order."""
    return sorted(int(folder.name.removeprefix("step-")) for folder in Path(pool).glob("step-*[0-9]"))


def past_model(pool: str | Path, step: int) -> Path:
    """The folder of a past model in the pool."""
    return Path(pool) / f"step-{step}"
