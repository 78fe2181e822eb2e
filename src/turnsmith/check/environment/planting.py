"""Faults that are planted in an environment on purpose: in its methods, and in the objects that it holds."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from turnsmith.config import EnvironmentConfig
from turnsmith.env.base import BaseEnvironment
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import TurnsmithError

_ASKED = {"reset", "step", "close", "get_prompt_prefix", "is_done", "solve"}
"""Methods that are called by episodes; the others are called by the environment itself."""
_PLAIN = {"builtins", "random", "collections", "datetime", "decimal", "fractions", "enum", "pathlib", "re", "turnsmith"}
"""Packages of objects that only hold values."""
_CODE = (type, FunctionType, MethodType, BuiltinFunctionType)
"""Kinds of values that are only called. An object that can be called, such as a connection to SQLite, is broken too."""


class PlantedFault(TurnsmithError):
    """Raised where a check has planted a fault."""


@dataclass(slots=True)
class Fault:
    """One planted fault, and whether the environment has run into it."""

    where: str
    times: int = 0

    def strike(self, *args: Any, **kwargs: Any) -> Any:
        """Count the call and raise."""
        self.times += 1
        raise PlantedFault(f"planted in {self.where} by turnsmith check")


class Broken:
    """An object of which any use raises.

    Example:
        >>> Broken(Fault("client")).get("a page")
        Traceback (most recent call last):
        turnsmith.check.environment.planting.PlantedFault: planted in client by turnsmith check
    """

    def __init__(self, fault: Fault) -> None:
        self.__dict__["_fault"] = fault

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["_fault"].strike()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raise, as any other use does."""
        return self._fault.strike()

    def __getitem__(self, key: Any) -> Any:
        return self._fault.strike()

    def __iter__(self) -> Any:
        return self._fault.strike()

    def __len__(self) -> int:
        return self._fault.strike()


@dataclass(frozen=True, eq=False)
class Planted:
    """A factory of environments with a fault in them.

    Args:
        spec: Builds the environment.
        fault: What is planted.
        method: The method that raises; empty: an object that the environment holds after `reset` does.
        attribute: The name of that object.
    """

    spec: EnvironmentSpec
    fault: Fault
    method: str = ""
    attribute: str = ""

    def __call__(self, config: EnvironmentConfig) -> Any:
        """Build the environment and plant the fault."""
        environment = self.spec.build()
        if close := getattr(environment, "close", None):
            environment.close = partial(_close_anyway, close)
        if self.method:
            setattr(environment, self.method, self.fault.strike)
        else:
            self._break_after_reset(environment)
        return environment

    def _break_after_reset(self, environment: Any) -> None:
        reset: Callable[..., Any] = environment.reset
        close: Callable[..., Any] | None = getattr(environment, "close", None)
        original: list[Any] = []

        def swap(observation: Any) -> Any:
            if hasattr(environment, self.attribute):
                original.append(getattr(environment, self.attribute))
                setattr(environment, self.attribute, Broken(self.fault))
            return observation

        async def swap_later(observation: Any) -> Any:
            return swap(await observation)

        def broken_reset(*args: Any, **kwargs: Any) -> Any:
            observation = reset(*args, **kwargs)
            return swap_later(observation) if inspect.isawaitable(observation) else swap(observation)

        def mended_close() -> Any:
            if original:
                setattr(environment, self.attribute, original[0])
            return close() if close is not None else None

        environment.reset = broken_reset
        if close is not None:
            environment.close = mended_close

    def spec_with_it(self) -> EnvironmentSpec:
        """The spec of environments with the fault; they run in this process, where the fault counts its calls."""
        return EnvironmentSpec(self, self.spec.config, isolation="thread")


def _close_anyway(close: Callable[[], Any]) -> Any:
    """Close, whatever it raises: it may need an object that the fault has kept from being made."""
    try:
        return close()
    except Exception:  # noqa: BLE001
        return None


def own_methods(environment: type) -> list[str]:
    """The plain methods of a class that only the environment itself calls.

    Example:
        >>> class Game(BaseEnvironment):
        ...     def step(self, action): ...
        ...     def _score(self, action): ...
        >>> own_methods(Game)
        ['_score']
    """
    found: dict[str, None] = {}
    for base in environment.__mro__:
        if base in (object, BaseEnvironment) or base in BaseEnvironment.__mro__:
            continue
        for name, value in vars(base).items():
            if inspect.isfunction(value) and not name.startswith("__") and name not in _ASKED:
                found[name] = None
    return list(found)


def held_objects(spec: EnvironmentSpec, environment: Any) -> list[str]:
    """The names of attributes that hold something with behaviour of its own: a client, a database, a simulator."""
    return [
        name
        for name, value in vars(environment).items()
        if type(value).__module__.partition(".")[0] not in _PLAIN and not isinstance(value, _CODE)
    ]


def here(spec: EnvironmentSpec) -> EnvironmentSpec:
    """The same environment, run in this process."""
    return replace(spec, isolation="thread")
