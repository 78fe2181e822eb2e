"""Limits on the arguments of a tool call, checked before any other code sees them."""

from __future__ import annotations

import math
from typing import Any

from turnsmith.text import replace_surrogates

MAX_DEPTH = 32
"""Nesting of lists and objects, counting the arguments object itself."""
MAX_SIZE = 65_536
"""Bytes of all strings, keys and integers together."""
MAX_DIGITS = 64
"""Digits of one integer."""
MAX_ITEMS = 4_096
"""Values in all lists and objects together."""


class BadArguments(Exception):
    """The model passed arguments that the tool does not accept; the message is shown to the model."""


def check_arguments(arguments: Any) -> dict[str, Any]:
    """Return a clean copy of a call's arguments, with lone surrogates replaced.

    Time and memory are bounded by the limits, not by the input: a list that contains itself stops at `MAX_DEPTH`, and
    one that holds the same large part many times stops at `MAX_ITEMS`. Checking the copy again changes nothing.

    Raises:
        BadArguments: The arguments are no object, exceed a limit, or hold a number that is not finite.

    Example:
        >>> check_arguments({"query": "red shoes", "limit": 5})
        {'query': 'red shoes', 'limit': 5}
        >>> check_arguments({"limit": 10**64})
        Traceback (most recent call last):
        turnsmith.tools.arguments.BadArguments: A number in the arguments has more than 64 digits.
    """
    if not isinstance(arguments, dict):
        raise BadArguments("The arguments must be an object with one entry for each argument.")
    return _Copier().copy(arguments, depth=1)


class _Copier:
    """Copies the arguments of one call and counts what they hold."""

    def __init__(self) -> None:
        self.items = 0
        self.size = 0

    def copy(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self.copy_text(value)
        if isinstance(value, (dict, list, tuple)):
            return self.copy_container(value, depth)
        if isinstance(value, int) and not isinstance(value, bool):
            if abs(value) >= 10**MAX_DIGITS:
                raise BadArguments(f"A number in the arguments has more than {MAX_DIGITS} digits.")
            self.add_size(8)
        elif isinstance(value, float) and not math.isfinite(value):
            raise BadArguments("A number in the arguments is not finite.")
        # Any other object comes from Python code that calls the tool itself; the tool's type hints decide about it.
        return value

    def copy_container(self, value: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise BadArguments(f"The arguments are nested more than {MAX_DEPTH} levels deep.")
        self.items += len(value)
        if self.items > MAX_ITEMS:
            raise BadArguments(f"The arguments have more than {MAX_ITEMS} values.")
        if isinstance(value, dict):
            return {
                self.copy_text(key) if isinstance(key, str) else key: self.copy(item, depth + 1)
                for key, item in value.items()
            }
        return [self.copy(item, depth + 1) for item in value]

    def copy_text(self, text: str) -> str:
        if len(text) > MAX_SIZE:
            raise BadArguments(f"A text in the arguments is longer than {MAX_SIZE} characters.")
        text = replace_surrogates(text)
        self.add_size(len(text.encode()))
        return text

    def add_size(self, size: int) -> None:
        self.size += size
        if self.size > MAX_SIZE:
            raise BadArguments(f"The arguments are longer than {MAX_SIZE} bytes.")
