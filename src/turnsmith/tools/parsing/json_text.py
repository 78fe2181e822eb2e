"""Reads JSON that stands somewhere in a text, in time linear in its length, and says what is wrong in plain words.

orjson does the reading. Measured (3.13): it refuses nesting over 1024 levels, NaN and Infinity, lone surrogates and
numbers over the range of a float, all with `JSONDecodeError`, never with another error; of two equal keys it keeps the
last. Two things it accepts are checked here: nesting that later code would fail on, and integers over 64 bits, which it
rounds to a float.
"""

from __future__ import annotations

import re
from typing import Any

from orjson import JSONDecodeError, loads

from turnsmith.tools.parsing.base import ProblemKind

__all__ = ["MAX_DEPTH", "JSONDecodeError", "Reading", "describe", "loads", "read_on", "value_problem"]

MAX_DEPTH = 64
"""Deepest nesting of a call's arguments."""

_AFTER = "unexpected content after document"
_EARLY_END = "unexpected end of data"
_FIRST_WINDOW, _GROWTH = 4096, 8

_LONG, _FEW = 4096, 64
_ROUNDED = 2.0**63
# Possessive, and only from the first digit of a number: linear also on a megabyte of digits.
_LONG_INTEGER = re.compile(r"(?<![\d.])(-?+)(\d{19,}+)(?![.eE])")
_RANGE = {"": "18446744073709551615", "-": "9223372036854775808"}
# All digits as 0 and all opening brackets as [. A byte over 127 is part of a letter.
_MARKED = bytes.maketrans(b"123456789{", b"000000000[")
_RUN = b"0" * 19
_NOT_BRACKETS = bytes(byte for byte in range(256) if chr(byte) not in "[]{}")


class Reading:
    """What `read_on` found: a value and where it ends, or what is wrong and how far it got."""

    __slots__ = ("end", "error", "value")

    def __init__(self, value: Any, end: int, error: JSONDecodeError | None = None) -> None:
        self.value = value
        self.end = end
        self.error = error


def read_on(text: str, start: int, stop: int, limit: int, error: JSONDecodeError | None = None) -> Reading:
    """Read the JSON value that starts at `start` and ends nobody knows where before `limit`.

    The end found is that of the white space after the value. Tries growing windows, so that the work is in step with
    the length of the value, not of the text.

    Args:
        text: The text.
        start: Where the value starts.
        stop: The first guess of its end.
        limit: The last possible end.
        error: What `loads(text[start:stop])` raised, if it was tried already.

    Example:
        >>> found = read_on('see {"a": 1} there', 4, 18, 18)
        >>> found.value, found.end
        ({'a': 1}, 13)
    """
    while True:
        if error is None:
            try:
                return Reading(loads(text[start:stop]), stop)
            except JSONDecodeError as problem:
                error = problem
        if error.msg == _AFTER:
            end = start + error.pos
            try:
                return Reading(loads(text[start:end]), end)
            except JSONDecodeError as problem:
                return Reading(None, start + max(1, problem.pos), problem)
        if stop >= limit or error.msg != _EARLY_END:
            return Reading(None, start + max(1, error.pos), error)
        stop = min(limit, start + max(_FIRST_WINDOW, _GROWTH * (stop - start)))
        error = None


def first_window(start: int, limit: int) -> int:
    """A first guess of where a value ends that keeps a wrong guess cheap."""
    return min(limit, start + _FIRST_WINDOW)


# In the words of a reader who does not see the parser. The first that is part of orjson's message is taken.
_HINTS = (
    ("expected ',' or", "a comma or a closing bracket is missing"),
    ("expected ':'", "a colon is missing"),
    ("expected a string key", "a key in double quotes is missing"),
    (
        "expected a JSON value",
        "a value is missing or lacks its double quotes",
    ),
    ("trailing comma", "there is a comma too many"),
    ("control character", "a line break or a tab must be written as \\n or \\t"),
    ("surrogate", "a \\u escape is half a character"),
    ("escape", "a backslash must be written as \\\\"),
    (_AFTER, "there is more after its end"),
    ("zero-length", "it is empty"),
)


def describe(error: JSONDecodeError, where: str) -> tuple[ProblemKind, str]:
    """The kind of a JSON error, and a sentence about `where` without its full stop.

    Example:
        >>> try:
        ...     loads('{"a": 1 "b": 2}')
        ... except JSONDecodeError as error:
        ...     print(describe(error, "The call"))
        (<ProblemKind.INVALID_JSON: 'invalid_json'>, 'The call is not valid JSON (a comma or a closing bracket is
        missing near character 9, at `"b": 2}`)')
    """
    message, at = error.msg, error.pos
    if message == _EARLY_END:
        return ProblemKind.UNFINISHED, f"{where} ends too early (a bracket or a quote is not closed)"
    if "infinity" in message:
        return ProblemKind.NUMBER_TOO_LARGE, f"{where} holds a number that is too large near character {at + 1}"
    if "depth" in message:
        return ProblemKind.TOO_DEEP, f"{where} is nested more than {MAX_DEPTH} levels deep"
    hint = next((hint for part, hint in _HINTS if part in message), "")
    excerpt = " ".join(error.doc[at : at + 24].replace("`", "'").split())
    place = f"{hint} near character {at + 1}".strip() + (f", at `{excerpt}`" if excerpt else "")
    return ProblemKind.INVALID_JSON, f"{where} is not valid JSON ({place})"


def value_problem(value: Any, text: str, start: int, stop: int) -> ProblemKind | None:
    """Whether a value read from `text[start:stop]` is nested too deep or holds an integer that was rounded.

    Looks at the text in bulk, because a walk through many small values takes several times as long as reading them;
    but a long text of few values is the other way round, so there the values come first.

    Example:
        >>> text = '{"n": 100000000000000000001}'
        >>> value_problem(loads(text), text, 0, len(text))
        <ProblemKind.NUMBER_TOO_LARGE: 'number_too_large'>
    """
    if stop - start > _LONG and _few_and_plain(value):
        return None
    raw = text[start:stop].encode()
    marked = raw.translate(_MARKED)
    if _RUN in marked and _has_rounded(value) and any(map(_over_range, _LONG_INTEGER.finditer(text, start, stop))):
        return ProblemKind.NUMBER_TOO_LARGE
    if marked.count(b"[") <= MAX_DEPTH or _is_flat(raw):
        return None
    return ProblemKind.TOO_DEEP if _too_deep(value) else None


def _over_range(integer: re.Match[str]) -> bool:
    """Whether orjson has rounded an integer. By its digits: making a number of 5000 digits is what must not happen."""
    most, digits = _RANGE[integer[1]], integer[2].lstrip("0")
    return (len(digits), digits) > (len(most), most)


def _few_and_plain(value: Any) -> bool:
    """Whether there are few values, nested little, and none of them a float."""
    level: list[Any] = [value]
    seen = 0
    for _ in range(4):
        below: list[Any] = []
        for node in level:
            children = node.values() if type(node) is dict else node
            seen += len(node)
            if seen > _FEW:
                return False
            for child in children:
                kind = type(child)
                if kind is float:
                    return False
                if kind is dict or kind is list:
                    below.append(child)
        if not below:
            return True
        level = below
    return False


def _is_flat(raw: bytes) -> bool:
    """Whether the brackets alone show that nothing is nested too deep; brackets in strings may hide it."""
    brackets = raw.translate(None, _NOT_BRACKETS)
    for _ in range(MAX_DEPTH // 2):  # each round takes off one level, or two
        shorter = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if not shorter:
            return True
        if len(shorter) == len(brackets):
            return False
        brackets = shorter
    return False


def _too_deep(value: Any) -> bool:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for node in level
            for child in (node.values() if type(node) is dict else node)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return False
    return True


def _has_rounded(value: Any) -> bool:
    waiting: list[Any] = [value]
    while waiting:
        node = waiting.pop()
        for child in node.values() if type(node) is dict else node:
            kind = type(child)
            if kind is dict or kind is list:
                waiting.append(child)
            elif kind is float and not -_ROUNDED < child < _ROUNDED:
                return True
    return False
