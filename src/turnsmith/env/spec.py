"""How to build an environment in any process on any node: a class, a factory or `module:Name`, and its config."""

from __future__ import annotations

import copy
import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from turnsmith.config import EnvironmentConfig
from turnsmith.env.agent import AGENT_SECONDS, AgentEnvironment, agent_environment
from turnsmith.env.isolation.settings import OWN, Isolation
from turnsmith.env.mix_member import MixMember
from turnsmith.env.signatures import check_signatures
from turnsmith.errors import ConfigError, TurnsmithError, describe_failure
from turnsmith.importing import absolute_name, import_object

ADAPTERS = {
    "gymnasium": "turnsmith.env.adapters.gymnasium:GymnasiumEnvironment",
    "openenv": "turnsmith.env.adapters.openenv:OpenEnvEnvironment",
    "pettingzoo": "turnsmith.env.adapters.pettingzoo:PettingZooEnvironment",
    "reasoning_gym": "turnsmith.env.adapters.reasoning_gym:ReasoningGymEnvironment",
    "textarena": "turnsmith.env.adapters.textarena:TextArenaEnvironment",
    "verifiers": "turnsmith.env.adapters.verifiers:VerifiersEnvironment",
    "ws": "turnsmith.env.adapters.openenv:OpenEnvEnvironment",
    "wss": "turnsmith.env.adapters.openenv:OpenEnvEnvironment",
}
_TRL = "turnsmith.env.adapters.trl:TRLEnvironment"
"""The adapters behind names such as `gymnasium:FrozenLake-v1`. The rest of the name, or a whole URL, is the adapter's
first argument. Adapters are imported when they are used, because every process with environments loads this module."""


@dataclass(frozen=True)
class EnvironmentSpec:
    """Builds fresh environments.

    Example:
        >>> spec = EnvironmentSpec.of("turnsmith.env.examples.guess_number:GuessNumber", EnvironmentConfig(highest=8))
        >>> spec.name, spec.build().config.highest
        ('GuessNumber', 8)
    """

    target: type | Callable[..., Any] | str
    """The class, factory or agent, or where to import it from: `package.module:Name` or `path/to/file.py:Name`."""
    config: EnvironmentConfig | None = None
    isolation: str = ""
    """Where its environments run; overrides `config.isolation`."""
    is_agent: bool = False
    """Whether it runs an agent, `solve(task, model)`, which asks for the model's turns itself."""

    @classmethod
    def of(cls, environment: object, config: EnvironmentConfig | None = None) -> EnvironmentSpec:
        """Make a spec from a class, a factory, an agent, `module:Name`, an object or a spec, and check that it works.

        A function of two required parameters, `(task, model)`, is an agent; any other function, a `functools.partial`
        too, is a factory: it returns a fresh environment and may take `config`, or settings by name. To see what a
        factory returns, it is called once here, and once in each process that runs episodes. An object stands for its
        class and its own config, because every episode gets a fresh object; `config` is used if the environment has
        none of its own.

        Example:
            >>> from turnsmith.env.examples import GuessNumber
            >>> EnvironmentSpec.of(lambda highest=4: GuessNumber({"highest": highest})).build().config.highest
            4
        """
        if isinstance(environment, EnvironmentSpec):
            spec = environment.with_config(config)
        elif isinstance(environment, str):
            spec = cls(absolute_name(environment), config)
            loaded = _imported(absolute_name(environment))
            if isinstance(loaded, EnvironmentSpec):  # a spec, or a mix of several, at the top level of a module
                spec = loaded.with_config(config).named(absolute_name(environment))
        elif _is_gymnasium(type(environment)):
            spec = cls(_made_again(environment), config)
        elif isinstance(environment, type) or (callable(environment) and not hasattr(environment, "reset")):
            spec = cls(environment, config)
        else:
            spec = cls(type(environment), _config_of(environment) or config)
        spec = spec.checked(_INSTANCE_HINT if spec.target is type(environment) else "")
        if spec.target is type(environment) and (lost := _lost(environment, spec)):
            warnings.warn(
                f"Every episode gets a fresh {spec.name}, made from its config, so {', '.join(lost)} of yours is lost: "
                "put it into the config, or pass a function that makes the environment.",
                stacklevel=2,
            )
        return spec

    def with_config(self, config: EnvironmentConfig | None) -> EnvironmentSpec:
        """The same spec, with these settings if it has none of its own."""
        return self if self.config is not None else replace(self, config=config)

    def named(self, name: str) -> EnvironmentSpec:
        """The same spec, known by the name under which it can be imported; only a mix uses that name."""
        return self

    def checked(self, hint: str = "") -> EnvironmentSpec:
        """The same spec, with the settings that its class declares.

        Raises:
            ConfigError: It is not an environment, or cannot be built; `hint` is added to why not.
        """
        _arguments(self.maker(), self.config or EnvironmentConfig(), hint)
        kind, spec = self.load(), self
        if issubclass(kind, AgentEnvironment):
            spec = replace(spec, config=_agent_config(spec.config), is_agent=True)
            spec.build()  # raises if its program or scorer does not exist
        missing = [name for name in ("reset", "step") if not callable(getattr(kind, name, None))]
        if missing and not isinstance(spec.maker(), type):
            raise ConfigError(
                f"{spec.name} returned {kind.__name__}, which is not an environment: it has no method "
                f"{' and no '.join(missing)}. A function of two parameters, task and model, would be an agent."
            )
        if missing:
            raise ConfigError(f"{spec.name} is not an environment: it has no method {' and no '.join(missing)}.")
        abstract = sorted(getattr(kind, "__abstractmethods__", ()))
        if abstract:
            methods = "method" if len(abstract) == 1 else "methods"
            raise ConfigError(f"{spec.name} cannot be built: it lacks the {methods} {' and '.join(abstract)}.")
        check_signatures(kind)
        Isolation.of(spec.config, spec.isolation)
        return spec

    def member_for(self, name: str, seed: int) -> tuple[str, MixMember] | None:
        """The environment of a mix that an episode is played in, with its name; None if this is not a mix."""
        return None

    def each(self) -> list[EnvironmentSpec]:
        """The environments that episodes are played in: this one, or all those of a mix."""
        return [self]

    @property
    def name(self) -> str:
        """The name of the class or function."""
        if not isinstance(self.target, str):
            return _name_of(self.target)
        _, is_url, address = self.target.partition("://")
        return address.replace("/", "-").replace(":", "-") if is_url else self.target.rpartition(":")[2]

    @property
    def mode(self) -> str:
        """Where its environments run; `auto` means `thread` here, and is decided by `isolated`."""
        mode = self.isolation or str(getattr(self.config, "isolation", "auto"))
        return "thread" if mode == "auto" else mode

    @property
    def call_seconds(self) -> float:
        """Timeout of one call of the environment, in seconds."""
        return float(getattr(self.config, "call_seconds", EnvironmentConfig.call_seconds))

    def isolated(self) -> EnvironmentSpec:
        """The same spec with `auto` decided: environments that do not ship with turnsmith run in worker processes,
        which need Linux.

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
        is_elsewhere = isinstance(self.target, str) and "://" in self.target  # a server runs its code
        is_ours = is_elsewhere or module.partition(".")[0] == "turnsmith"
        return replace(self, isolation="thread" if is_ours or sys.platform != "linux" else "process")

    def in_own_processes(self, which: Sequence[int]) -> EnvironmentSpec:
        """The same spec with a worker process for each environment, if `which`, numbers of `each()`, has its own.

        Example:
            >>> EnvironmentSpec("my_game:MyGame").in_own_processes([0]).mode
            'own_process'
        """
        if 0 not in which:
            return self
        config = EnvironmentConfig() if self.config is None else _own_config(self.config)
        config.isolation = OWN
        return replace(self, config=config, isolation="")

    def check_tasks(self, tasks: Iterable[Mapping[str, Any]]) -> None:
        """Let an environment that has a method `check_tasks` raise a ConfigError for rows that it could not play."""
        first, *others = self.each()
        if not others and hasattr(first.load(), "check_tasks"):
            first.build().check_tasks(tasks)

    def maker(self) -> Callable[..., Any]:
        """The callable that builds an environment: the class, the factory or, for an agent, the class that runs it."""
        loaded = _imported(self.target) if isinstance(self.target, str) else self.target
        return agent_environment(loaded) if not isinstance(loaded, type) and _is_agent(loaded) else loaded

    def load(self) -> type:
        """The class of its environments."""
        maker = self.maker()
        if not isinstance(maker, type):
            return _class_made_by(maker, self)
        return import_object(_adapter_of(maker)) if _adapter_of(maker) else maker

    def build(self) -> Any:
        """A fresh environment with its own copy of the config, so that one episode cannot change another's."""
        maker = self.maker()
        if isinstance(maker, partial):
            maker = partial(maker.func, *own_copy(maker.args), **own_copy(maker.keywords))
        config = EnvironmentConfig() if self.config is None else _own_config(self.config)
        built = maker(**_arguments(maker, config))
        adapter = _adapter_of(type(built))
        return import_object(adapter)(built, config) if adapter else built


def own_copy(value: Any) -> Any:
    """A deep copy of lists, tuples, sets and dicts, and of objects as far as they can be copied.

    What cannot be, such as a connection or a lock, is shared.

    Example:
        >>> rows = {"cards": [1, 2]}
        >>> own_copy(rows)["cards"].pop(), rows
        (2, {'cards': [1, 2]})
    """
    try:
        return copy.deepcopy(value)
    except Exception:  # copying an object can raise anything
        if isinstance(value, dict):
            return {key: own_copy(one) for key, one in value.items()}
        return type(value)(map(own_copy, value)) if type(value) in (list, tuple, set) else value


def _own_config(config: EnvironmentConfig) -> EnvironmentConfig:
    own = copy.copy(config)
    vars(own).update(own_copy(vars(config)))
    return own


_INSTANCE_HINT = (
    " An environment object is rebuilt from its class for every episode: "
    "let `__init__` take only `config`, and put what it needs into the config."
)


def _made_again(environment: Any) -> Callable[..., Any]:
    if environment.spec is None:
        raise ConfigError(
            f"{type(environment).__name__} was not made by gymnasium.make, so it can't be made again for each episode: "
            "pass its class, or a function that makes it."
        )
    return partial(import_object(ADAPTERS["gymnasium"]), environment.spec)


def _is_gymnasium(kind: type) -> bool:
    """Whether a class is one of Gymnasium's; does not import it."""
    return any(base.__name__ == "Env" and base.__module__.partition(".")[0] == "gymnasium" for base in kind.__mro__)


def _adapter_of(kind: type) -> str:
    """The adapter that plays objects of a class that was not written for turnsmith; empty: it needs none."""
    if _is_gymnasium(kind):
        return ADAPTERS["gymnasium"]
    return _TRL if _is_for_trl(kind) else ""


def _is_for_trl(kind: type) -> bool:
    """Whether a class has what TRL's `environment_factory` asks for, and no `step`."""
    methods = [name for name, _ in inspect.getmembers(kind, predicate=inspect.isfunction)]
    own = [name for name in methods if not name.startswith("_") and name != "reset"]
    return "reset" in methods and "step" not in methods and bool(own)


def _config_of(environment: object) -> EnvironmentConfig | None:
    config = getattr(environment, "config", None)
    if isinstance(config, EnvironmentConfig):
        return config
    return EnvironmentConfig(**config) if isinstance(config, Mapping) else None


def _lost(environment: object, spec: EnvironmentSpec) -> list[str]:
    """The attributes of an object that differ from those of an object built from its config."""
    settings, mine = vars(spec.config or EnvironmentConfig()), getattr(environment, "__dict__", {})
    lost = [name for name, value in settings.items() if _differ(mine.get(name, value), value)]
    names = [parameter.name for parameter in _parameters(type(environment)) if parameter.name in mine]
    if more := [name for name in names if name != "config" and name not in settings]:
        fresh = spec.build()
        lost += [name for name in more if _differ(mine[name], getattr(fresh, name, None))]
    return [f"{name}={mine[name]!r:.40}" for name in lost]


def _differ(mine: object, other: object) -> bool:
    """Whether two values differ; objects without their own `__eq__` differ if their classes do."""
    if type(mine) is not type(other) or type(mine).__eq__ is object.__eq__:
        return type(mine) is not type(other)
    try:
        return bool(mine != other)
    except Exception:  # an array has no single truth value
        return False


@lru_cache(maxsize=256)
def _parameters(maker: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    if isinstance(maker, type) and maker.__init__ is object.__init__:
        return ()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(p for p in inspect.signature(maker).parameters.values() if p.kind in named)


def _is_agent(function: Callable[..., Any]) -> bool:
    if isinstance(function, partial) and isinstance(function.func, type):
        return False
    return sum(parameter.default is inspect.Parameter.empty for parameter in _parameters(function)) == 2


def _name_of(maker: Callable[..., Any]) -> str:
    function = maker.func if isinstance(maker, partial) else maker
    return getattr(function, "__name__", type(function).__name__)


_made_by: dict[int, tuple[Callable[..., Any], type]] = {}
"""The classes of the objects that factories return. The factory is kept, so that no other object gets its id."""


def _class_made_by(factory: Callable[..., Any], spec: EnvironmentSpec) -> type:
    if id(factory) not in _made_by:
        try:
            environment = spec.build()  # it is not closed, because `close` may need what `reset` makes
        except TurnsmithError:
            raise
        except Exception as error:
            raise ConfigError(f"{describe_failure(spec.name, error)}, when called to see what it makes.") from error
        _made_by[id(factory)] = factory, type(environment)
    return _made_by[id(factory)][1]


def _arguments(maker: Callable[..., Any], config: EnvironmentConfig, hint: str = "") -> dict[str, Any]:
    """Arguments for the class or factory: the config as `config`, and single settings by their names."""
    arguments: dict[str, Any] = {}
    needed: list[str] = []
    for parameter in _parameters(maker):
        if parameter.name == "config":
            arguments["config"] = config
        elif parameter.name in vars(config):
            arguments[parameter.name] = vars(config)[parameter.name]
        elif parameter.default is inspect.Parameter.empty:
            needed.append(parameter.name)
    if len(needed) == 1 and not arguments and _parameters(maker)[0].name == needed[0]:
        return {needed[0]: config}  # `def __init__(self, cfg)`: the config under another name
    if needed:
        settings = " ".join(f"environment.{name}=..." for name in needed)
        what = "its __init__" if isinstance(maker, type) else "it"
        raise ConfigError(f"{_name_of(maker)} cannot be built: {what} needs {', '.join(needed)}. Set {settings}.{hint}")
    return arguments


@lru_cache(maxsize=256)
def _imported(target: str) -> Any:
    prefix, _, name = target.partition(":")
    if prefix in ADAPTERS:
        return partial(import_object(ADAPTERS[prefix]), target if name.startswith("//") else name)
    loaded = import_object(target)
    if not callable(loaded) and not isinstance(loaded, EnvironmentSpec):
        raise ConfigError(
            f"{target} is not an environment, which is a class with `reset` and `step` or a function that returns one, "
            "nor an agent, which is a function of a task and a model."
        )
    return loaded


def _agent_config(config: EnvironmentConfig | None) -> EnvironmentConfig:
    """The settings with the timeout of an agent, whose one call is the whole episode."""
    config = EnvironmentConfig() if config is None else _own_config(config)
    config.call_seconds = max(config.call_seconds, AGENT_SECONDS)
    return config
