"""Read JSON that stands somewhere in a text, in time linear in its length, and explain JSON errors to a model.

orjson (3.13) does the parsing. It refuses nesting over 1024 levels, NaN and Infinity, lone surrogates and numbers
beyond the range of a float, always with `JSONDecodeError`; of two equal keys it keeps the last. Two things that it
accepts are checked here: nesting that later code would fail on, and integers over 64 bits, which it rounds to a float.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from orjson import JSONDecodeError, loads

from turnsmith.tools.parsing.base import ProblemKind

__all__ = [
    "MAX_DEPTH",
    "WINDOW",
    "JSONDecodeError",
    "JSONReading",
    "argument_problem",
    "describe_error",
    "loads",
    "read_json",
]

MAX_DEPTH = 64
"""Deepest nesting of a call's arguments."""
WINDOW = 4096
"""Characters that are parsed first where the end of a value is not known."""

_GROWTH = 8
_TRAILING_CONTENT = "unexpected content after document"
_EARLY_END = "unexpected end of data"
_ROUNDED = 2.0**63
"""A float from here on may be an integer that was rounded."""
# Possessive, and only from the first digit of a number: linear also on a megabyte of digits.
_LONG_INTEGER = re.compile(r"(?<![\d.])-?+\d{19,}+(?![.eE])")


class JSONReading(NamedTuple):
    """A JSON value and where it ends, or the error and how far the parser got."""

    value: Any
    end: int
    error: JSONDecodeError | None = None


def read_json(text: str, start: int, stop: int, limit: int) -> JSONReading:
    """Read the JSON value that starts at `start` and ends at an unknown place before `limit`.

    The end found is that of the white space after the value. Parses windows of growing size, so that the work is
    proportional to the length of the value, not of the text.

    Args:
        text: The text.
        start: Where the value starts.
        stop: The first guess of its end.
        limit: The last possible end.

    Example:
        >>> read_json('see {"a": 1} there', 4, 18, 18)
        JSONReading(value={'a': 1}, end=13, error=None)
    """
    while True:
        stop = min(stop, limit)
        try:
            return JSONReading(loads(text[start:stop]), stop)
        except JSONDecodeError as error:
            if error.msg == _TRAILING_CONTENT:
                stop = limit = start + error.pos
            elif stop < limit and error.msg == _EARLY_END:
                stop = start + max(WINDOW, _GROWTH * (stop - start))
            else:
                return JSONReading(None, start + max(1, error.pos), error)


# In the words of a reader who does not see the parser. The first that is part of orjson's message is taken.
_HINTS = (
    ("expected ',' or", "a comma or a closing bracket is missing"),
    ("expected ':'", "a colon is missing"),
    ("expected a string key", "a key in double quotes is missing"),
    ("expected a JSON value", "a value is missing or lacks its double quotes"),
    ("trailing comma", "there is a comma too many"),
    ("control character", "a line break or a tab must be written as \\n or \\t"),
    ("surrogate", "a \\u escape is half a character"),
    ("escape", "a backslash must be written as \\\\"),
    (_TRAILING_CONTENT, "there is more after its end"),
    ("zero-length", "it is empty"),
)


def describe_error(error: JSONDecodeError, what: str) -> tuple[ProblemKind, str]:
    """The kind of a JSON error, and a sentence about it without its full stop; `what` is its subject.

    Example:
        >>> reading = read_json('{"a": 1 "b": 2}', 0, 15, 15)
        >>> describe_error(reading.error, "The call")
        (<ProblemKind.INVALID_JSON: 'invalid_json'>, 'The call is not valid JSON (a comma or a closing bracket is
        missing near character 9, at `"b": 2}`)')
    """
    message, position = error.msg, error.pos
    if message == _EARLY_END:
        return ProblemKind.UNFINISHED, f"{what} ends too early (a bracket or a quote is not closed)"
    if "infinity" in message:
        return ProblemKind.NUMBER_TOO_LARGE, f"{what} holds a number that is too large near character {position + 1}"
    if "depth" in message:
        return ProblemKind.TOO_DEEP, f"{what} is nested more than {MAX_DEPTH} levels deep"
    hint = next((hint for part, hint in _HINTS if part in message), "")
    excerpt = " ".join(error.doc[position : position + 24].replace("`", "'").split())
    place = f"{hint} near character {position + 1}".strip() + (f", at `{excerpt}`" if excerpt else "")
    return ProblemKind.INVALID_JSON, f"{what} is not valid JSON ({place})"


def argument_problem(arguments: Sequence[dict[str, Any]], source: str) -> ProblemKind | None:
    """Whether arguments parsed from `source` are nested too deep or hold an integer that orjson has rounded.

    Example:
        >>> source = '{"n": 100000000000000000001}'
        >>> argument_problem([loads(source)], source)
        <ProblemKind.NUMBER_TOO_LARGE: 'number_too_large'>
    """
    level: list[Any] = list(arguments)
    has_huge_float = False
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for container in level:
            for value in container.values() if type(container) is dict else container:
                kind = type(value)
                if kind is dict or kind is list:
                    below.append(value)
                elif kind is float and not -_ROUNDED < value < _ROUNDED:
                    has_huge_float = True
        level = below
        if not level:
            break
    if has_huge_float and any(map(_is_over_64_bits, _LONG_INTEGER.findall(source))):
        return ProblemKind.NUMBER_TOO_LARGE
    return ProblemKind.TOO_DEEP if level else None


def _is_over_64_bits(integer: str) -> bool:
    # By the number of digits first: converting thousands of digits takes quadratic time.
    return len(integer) > 20 or not -(2**63) <= int(integer) < 2**64
