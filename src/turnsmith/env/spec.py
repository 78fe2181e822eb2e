"""How to build an environment in any process on any node: a class or `module:Name`, and its config."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from turnsmith.config import EnvironmentConfig
from turnsmith.env.agent import AGENT_SECONDS, AgentEnvironment, agent_environment
from turnsmith.env.isolation.settings import Isolation
from turnsmith.errors import ConfigError
from turnsmith.importing import absolute_name, import_object


@dataclass(frozen=True)
class EnvironmentSpec:
    """Builds fresh environments.

    Example:
        >>> spec = EnvironmentSpec.of("turnsmith.env.examples.guess_number:GuessNumber", EnvironmentConfig(highest=8))
        >>> spec.name, spec.build().config.highest
        ('GuessNumber', 8)
    """

    target: type | Callable[..., Any] | str
    """The class or agent, or where to import it from: `package.module:Name` or `path/to/file.py:Name`."""
    config: EnvironmentConfig | None = None
    isolation: str = ""
    """Where its environments run; overrides `config.isolation`."""
    is_agent: bool = False
    """Whether it runs an agent, `solve(task, model)`, which asks for the model's turns itself."""

    @classmethod
    def of(cls, environment: object, config: EnvironmentConfig | None = None) -> EnvironmentSpec:
        """Make a spec from a class, an agent, `module:Name`, an object or a spec, and check that it can be built.

        A function is an agent. An object stands for its class and its own config, because every episode gets a fresh
        object; `config` is used if the environment has none of its own.
        """
        if isinstance(environment, EnvironmentSpec):
            spec = environment if environment.config is not None else replace(environment, config=config)
        elif isinstance(environment, str):
            spec = cls(absolute_name(environment), config)
        elif isinstance(environment, type) or inspect.isroutine(environment):
            spec = cls(environment, config)
        else:
            spec = cls(type(environment), _config_of(environment) or config)
        is_object = not (isinstance(environment, (str, type, EnvironmentSpec)) or inspect.isroutine(environment))
        hint = _INSTANCE_HINT if is_object else ""
        found = spec.load()
        if issubclass(found, AgentEnvironment):
            spec = replace(spec, config=_agent_config(spec.config), is_agent=True)
        missing = [name for name in ("reset", "step") if not callable(getattr(found, name, None))]
        if missing:
            raise ConfigError(f"{spec.name} is not an environment: it has no method {' and no '.join(missing)}.")
        abstract = sorted(getattr(found, "__abstractmethods__", ()))
        if abstract:
            raise ConfigError(f"{spec.name} cannot be built: it lacks the method {' and '.join(abstract)}.")
        _arguments(found, spec.config or EnvironmentConfig(), hint)
        Isolation.of(spec.config, spec.isolation)
        return spec

    @property
    def name(self) -> str:
        """The class's name."""
        return self.target.rpartition(":")[2] if isinstance(self.target, str) else self.target.__name__

    @property
    def mode(self) -> str:
        """Where its environments run; `auto` means `thread` here, and is decided by `isolated`."""
        mode = self.isolation or str(getattr(self.config, "isolation", "auto"))
        return "thread" if mode == "auto" else mode

    @property
    def call_seconds(self) -> float:
        """Timeout of one call of the environment, in seconds."""
        return float(getattr(self.config, "call_seconds", EnvironmentConfig.call_seconds))

    @property
    def threads(self) -> int:
        """Threads that its environments may live in, in each process; 0: the default."""
        return int(getattr(self.config, "threads", EnvironmentConfig.threads))

    def isolated(self) -> EnvironmentSpec:
        """The same spec with `auto` decided: environments that do not ship with turnsmith run in worker processes.

        Example:
            >>> EnvironmentSpec.of("turnsmith.env.examples:GuessNumber").isolated().mode
            'thread'
            >>> EnvironmentSpec("my_game:MyGame").mode, EnvironmentSpec("my_game:MyGame").isolated().mode
            ('thread', 'process')
            >>> EnvironmentSpec("my_game:MyGame", EnvironmentConfig(isolation="loop")).isolated().mode
            'loop'
        """
        if (self.isolation or getattr(self.config, "isolation", "auto")) != "auto":
            return self
        module = self.target.partition(":")[0] if isinstance(self.target, str) else self.target.__module__
        return replace(self, isolation="thread" if module.partition(".")[0] == "turnsmith" else "process")

    def load(self) -> type:
        """The class itself; for an agent, the one that runs it."""
        if isinstance(self.target, str):
            return _load(self.target)
        return self.target if isinstance(self.target, type) else agent_environment(self.target)

    def build(self) -> Any:
        """A fresh environment with its own copy of the config, so that one episode cannot change another's."""
        found = self.load()
        config = EnvironmentConfig() if self.config is None else copy.copy(self.config)
        return found(**_arguments(found, config))


_INSTANCE_HINT = (
    " An environment object is rebuilt from its class for every episode: "
    "let `__init__` take only `config`, and put what it needs into the config."
)


def _config_of(environment: object) -> EnvironmentConfig | None:
    config = getattr(environment, "config", None)
    if isinstance(config, Mapping):
        return EnvironmentConfig(**config)
    return config if isinstance(config, EnvironmentConfig) else None


@lru_cache(maxsize=256)
def _parameters(environment: type) -> tuple[inspect.Parameter, ...]:
    if environment.__init__ is object.__init__:
        return ()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(p for p in inspect.signature(environment).parameters.values() if p.kind in named)


def _arguments(environment: type, config: EnvironmentConfig, hint: str = "") -> dict[str, Any]:
    """Arguments for the class: the config as `config`, and settings of the config by name."""
    given: dict[str, Any] = {}
    needed: list[str] = []
    for parameter in _parameters(environment):
        if parameter.name == "config":
            given["config"] = config
        elif parameter.name in vars(config):
            given[parameter.name] = vars(config)[parameter.name]
        elif parameter.default is inspect.Parameter.empty:
            needed.append(parameter.name)
    if len(needed) == 1 and not given and _parameters(environment)[0].name == needed[0]:
        return {needed[0]: config}  # `def __init__(self, cfg)`: the config under another name
    if needed:
        settings = " ".join(f"environment.{name}=..." for name in needed)
        raise ConfigError(
            f"{environment.__name__} cannot be built: its __init__ needs {', '.join(needed)}. Set {settings}.{hint}"
        )
    return given


@lru_cache(maxsize=256)
def _load(target: str) -> type:
    found = import_object(target)
    if inspect.isroutine(found):
        return agent_environment(found)
    if not isinstance(found, type):
        raise ConfigError(
            f"{target} is not an environment, which is a class with `reset` and `step`, nor an agent, which is a "
            "function of a task and a model."
        )
    return found


def _agent_config(config: EnvironmentConfig | None) -> EnvironmentConfig:
    """The settings with the timeout of an agent, whose one call is the whole episode."""
    config = EnvironmentConfig() if config is None else copy.copy(config)
    config.call_seconds = max(config.call_seconds, AGENT_SECONDS)
    return config
