"""Whether `reset` and `step` of an environment's class can be called as episodes call them."""

from __future__ import annotations

import inspect
from typing import Any

from turnsmith.errors import ConfigError

NO_TASK = (
    "takes a task, but this episode has none, because no data was given: pass rows (`--data FILE`, or `dataset=[...]` "
    "in Python), or give the parameter a default, task=None."
)
"""The error if `reset` needs a task and there is none."""


def check_signatures(environment: type) -> None:
    """Raise a `ConfigError` if `reset` or `step` needs arguments that episodes do not pass.

    Example:
        >>> class Game:
        ...     def reset(self, difficulty): ...
        ...     def step(self, action): ...
        >>> check_signatures(Game)
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: Game.reset cannot be called: missing a required argument: 'difficulty'. It may \
take `seed` and `task`; settings go to __init__, or are read from self.config.
    """
    seed_and_task = {name: None for name in ("seed", "task") if name in _parameters(environment, "reset")}
    advice = "It may take `seed` and `task`; settings go to __init__, or are read from self.config."
    _check(environment, "reset", (), seed_and_task, advice)
    _check(environment, "step", ("",), {}, "It is given one text: write it as `def step(self, action)`.")


def needs_task(environment: type) -> bool:
    """Whether `reset` has a parameter `task` without a default."""
    task = _parameters(environment, "reset").get("task")
    return task is not None and task.default is inspect.Parameter.empty


def _check(environment: type, name: str, args: tuple[Any, ...], named: dict[str, Any], advice: str) -> None:
    if not inspect.isfunction(inspect.getattr_static(environment, name)):
        return
    try:
        inspect.signature(getattr(environment, name)).bind(None, *args, **named)
    except TypeError as error:
        raise ConfigError(f"{environment.__name__}.{name} cannot be called: {error}. {advice}") from None


def _parameters(environment: type, name: str) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(getattr(environment, name)).parameters)
