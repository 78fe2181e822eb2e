"""Checks of the functions and methods that users make tools of."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

from turnsmith.errors import ConfigError


def what_is_untold(name: str, description: str | None, function: Any) -> list[str]:
    """What the model is not told about a tool, because it has no description or parameters without type hints."""
    if not inspect.isfunction(function):  # written in C
        return []
    messages = (
        [] if description else [f"The tool {name} has no docstring: the model is told nothing about what it does."]
    )
    for parameter in inspect.signature(function).parameters.values():
        is_variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if parameter.annotation is parameter.empty and parameter.name not in ("self", "cls") and not is_variadic:
            messages.append(
                f"The parameter {parameter.name} of the tool {name} has no type hint: the model is told nothing about "
                "its type, and any value is accepted."
            )
    return messages


def warn_if_incomplete(name: str, description: str | None, function: Any) -> None:
    """Warn, at the line of its definition, about what the model is not told about a tool."""
    function = inspect.unwrap(function)
    messages = what_is_untold(name, description, function)
    if not messages:
        return
    code, seen = function.__code__, function.__globals__.setdefault("__warningregistry__", {})
    for message in messages:
        warnings.warn_explicit(message, UserWarning, code.co_filename, code.co_firstlineno, function.__module__, seen)


def require_self(owner: type, member: Any) -> None:
    """Refuse a marked method that forgot `self`: Python would pass the environment as its first argument."""
    if not inspect.isfunction(member):  # a static or class method
        return
    first = next(iter(inspect.signature(member).parameters.values()), None)
    if first is None or (first.name != "self" and first.kind is not first.VAR_POSITIONAL):
        raise ConfigError(
            f"The tool method {owner.__name__}.{member.__name__} has no parameter `self`; "
            "add it, or mark the method with @staticmethod."
        )
