"""What a run was made from, by names that can be imported again: `resume.json` of a run folder.

Code is never written to a run folder. What has no name, such as a lambda, has to be given again from Python.
"""

from __future__ import annotations

import hmac
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from turnsmith.config import EnvironmentConfig
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import RecordError
from turnsmith.importing import import_name
from turnsmith.records.files import write_text
from turnsmith.records.signing_key import signature, signing_key
from turnsmith.tools.registry import ToolRegistry

_FILE = "resume.json"


@dataclass
class Recipe:
    """The parts of a run besides its settings and starts, as names to import; None: the run has no such part."""

    steps: int = 0
    """How many optimizer steps were asked for, in all."""
    steps_in_epoch: int = 1
    environment: str | None = None
    environment_settings: dict[str, Any] | None = None
    """Where they are not those of config.yaml."""
    reward_fn: str | None = None
    tools: list[str] | None = None
    curriculum: str | None = None
    validation: str | None = None
    """The environment to evaluate in, where it is not the one to train in."""
    validation_settings: dict[str, Any] | None = None
    nameless: dict[str, str] = field(default_factory=dict)
    """Parts that cannot be imported again, and what they are."""
    import_path: list[str] = field(default_factory=list)
    """Folders that modules were imported from."""

    @classmethod
    def of(
        cls,
        environment: EnvironmentSpec,
        settings: Any,
        reward_fn: Callable[..., Any] | None,
        tools: ToolRegistry | None,
        curriculum: Callable[..., Any] | None,
    ) -> Recipe:
        """The recipe of a run; `settings` are the environment's in the config."""
        recipe = cls(import_path=list(dict.fromkeys(map(os.path.abspath, ("", *sys.path[:2])))))
        target = environment.target
        recipe.environment = target if isinstance(target, str) else recipe.name("environment", target)
        recipe.reward_fn = recipe.name("reward_fn", reward_fn)
        recipe.curriculum = recipe.name("curriculum", curriculum)
        if tools is not None:
            names = [recipe.name("tools", tool) for tool in tools]
            recipe.tools = [name for name in names if name]
        if environment.config is not None and environment.config != settings:
            recipe.environment_settings = recipe._plain(environment.config)
        elif not isinstance(settings, EnvironmentConfig):
            recipe.nameless["environment"] = f"{environment.name} with a config that is a {type(settings).__name__}"
        return recipe

    def name(self, part: str, found: Any) -> str | None:
        """The name to import `found` by; if it has none, that is noted."""
        name = None if found is None else import_name(found)
        if found is not None and name is None:
            self.nameless[part] = str(getattr(found, "__qualname__", None) or type(found).__name__)
        return name

    def validate_in(self, environment: EnvironmentSpec, settings: Any) -> None:
        """Note the environment to evaluate in; `settings` are those of the environment in the config."""
        target = environment.target
        self.validation = target if isinstance(target, str) else self.name("validation", target)
        if environment.config is not None and environment.config != settings:
            self.validation_settings = self._plain(environment.config, "validation")

    def _plain(self, settings: EnvironmentConfig, part: str = "environment") -> dict[str, Any] | None:
        try:
            plain = json.loads(json.dumps(settings.as_dict(), allow_nan=False))
        except (TypeError, ValueError):
            plain = None
        if plain != settings.as_dict():
            self.nameless[part] = "an object with settings that JSON has no form for"
        return plain

    def write(self, run: Path) -> None:
        """Keep it in the run's folder, signed: who can write here decides what code the next `resume` runs."""
        recipe = asdict(self)
        write_text(run / _FILE, json.dumps({**recipe, "signature": _signature(recipe)}, indent=1) + "\n")

    @classmethod
    def read(cls, run: Path, *, trust: bool = False) -> Recipe:
        """Read what `write` wrote.

        Raises:
            RecordError: There is none, it is damaged, or somebody else wrote it and it is not trusted.
        """
        try:
            content = json.loads((run / _FILE).read_text(encoding="utf-8"))
            signed, recipe = str(content.pop("signature", "")), cls(**content)
        except FileNotFoundError:
            raise RecordError(f"{run} cannot be resumed: it has no {_FILE}, so an older turnsmith wrote it.") from None
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise RecordError(f"{run / _FILE} is damaged.") from None
        own = _signature(content)
        if not trust and not (own and hmac.compare_digest(signed.encode(), own.encode())):
            raise RecordError(
                f"{run / _FILE} was not written by this user's turnsmith, or was changed since. Going on runs the code "
                "that it names: if you trust them, pass trust=True, or --trust on the command line."
            )
        return recipe


def _signature(recipe: dict[str, Any]) -> str:
    """Empty without a key: then resuming takes trust."""
    try:
        return signature(json.dumps(recipe, sort_keys=True).encode(), signing_key())
    except RecordError:
        return ""
