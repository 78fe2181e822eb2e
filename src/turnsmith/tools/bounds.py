"""Limits on what a model may pass to a tool, checked before any other code sees it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from turnsmith.text import replace_surrogates


class BadArguments(Exception):
    """The model passed arguments that do not fit; the message is a sentence for the model."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How large the arguments of one call may be.

    Example:
        >>> Bounds().check({"query": "red shoes", "limit": 5})
        {'query': 'red shoes', 'limit': 5}
        >>> Bounds(digits=3).check({"limit": 1000})
        Traceback (most recent call last):
        turnsmith.tools.bounds.BadArguments: A number in the arguments has more than 3 digits.
    """

    depth: int = 32
    """Levels of lists and objects inside each other, the arguments themselves included."""
    size: int = 65_536
    """Bytes of all texts, keys and numbers together."""
    string: int = 65_536
    """Characters of one text."""
    digits: int = 64
    """Digits of one whole number."""
    items: int = 4_096
    """Values in all lists and objects together."""

    def check(self, arguments: Any) -> dict[str, Any]:
        """A clean copy of the arguments, or `BadArguments`.

        Time and memory are bounded by the limits, not by the input: lists that contain themselves, or that share one
        huge part many times, stop at `depth` or `items`. Half surrogate pairs become the replacement character.
        """
        if not isinstance(arguments, dict):
            raise BadArguments("The arguments must be an object with one entry for each argument.")
        return _Walk(self).walk(arguments, 1)


class _Walk:
    """One pass over one call's arguments, counting."""

    __slots__ = ("bounds", "highest", "items", "size")

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.items = bounds.items
        self.size = bounds.size
        self.highest = _power(bounds.digits)

    def walk(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return self.integer(value)
        if isinstance(value, float):
            if not math.isfinite(value):
                raise BadArguments("A number in the arguments is not finite.")
            return value
        if isinstance(value, (dict, list, tuple)):
            if depth > self.bounds.depth:
                raise BadArguments(f"The arguments are nested more than {self.bounds.depth} levels deep.")
            self.items -= len(value)
            if self.items < 0:
                raise BadArguments(f"The arguments have more than {self.bounds.items} values.")
            if isinstance(value, dict):
                return {self.key(key): self.walk(item, depth + 1) for key, item in value.items()}
            return [self.walk(item, depth + 1) for item in value]
        # Not from a model: Python code may call a tool with objects of its own, which the tool's types then judge.
        return value

    def text(self, value: str) -> str:
        if len(value) > self.bounds.string:
            raise BadArguments(f"A text in the arguments is longer than {self.bounds.string} characters.")
        if not value.isascii():
            value = replace_surrogates(value)
            self.spend(len(value.encode()))
        else:
            self.spend(len(value))
        return value

    def key(self, value: Any) -> Any:
        return self.text(value) if isinstance(value, str) else value

    def integer(self, value: int) -> int:
        if not -self.highest < value < self.highest:
            raise BadArguments(f"A number in the arguments has more than {self.bounds.digits} digits.")
        self.spend(8)
        return value

    def spend(self, size: int) -> None:
        self.size -= size
        if self.size < 0:
            raise BadArguments(f"The arguments are longer than {self.bounds.size} bytes.")


_powers: dict[int, int] = {}


def _power(digits: int) -> int:
    if digits not in _powers:
        _powers[digits] = 10**digits
    return _powers[digits]
