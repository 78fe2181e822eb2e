"""Matches a regular expression in linear time with re2, where re2 and `re` agree; elsewhere with `re`.

They agree on a whole text and a pattern of characters of ASCII, classes, alternatives, groups and repetitions. `re`
parses the pattern, and what it has understood is written again for re2, whose own `\\s`, for example, means less. All
other characters of the same classes are alike to such a pattern, so one stands for them. Look around, references to
groups, `\\b` and flags but `(?i)` are left to `re`.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

_parser: Any = importlib.import_module("re._parser")
_WORD, _DIGIT, _SPACE, _OTHER = "\ue000\ue001\ue002\ue003"
"""Each represents all non-ASCII characters of its kind; a digit is also a word character."""
_CLASSES = {
    "CATEGORY_DIGIT": f"0-9{_DIGIT}",
    "CATEGORY_NOT_DIGIT": rf"\x00-/:-\x7f{_WORD}{_SPACE}{_OTHER}",
    "CATEGORY_SPACE": rf"\t-\r\x1c- {_SPACE}",
    "CATEGORY_NOT_SPACE": rf"\x00-\x08\x0e-\x1b!-\x7f{_WORD}{_DIGIT}{_OTHER}",
    "CATEGORY_WORD": f"0-9A-Za-z_{_WORD}{_DIGIT}",
    "CATEGORY_NOT_WORD": rf"\x00-/:-@\[-^`{{-\x7f{_SPACE}{_OTHER}",
}
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")


class Untranslatable(Exception):
    """re2 does not have it, or means something else by it."""


def matches(pattern: str, text: str) -> bool:
    """Whether the whole text matches, as `re.fullmatch` with `re.DOTALL` says.

    Example:
        >>> matches(r"\\d+ (cm|m)", "12 cm"), matches(r"(a+)+", "aab")
        (True, False)
    """
    linear = in_linear_time(pattern)
    if linear is not None and (text.isascii() or not linear.folds_case):
        return linear(text)
    return re.fullmatch(pattern, text, re.DOTALL) is not None


@dataclass(frozen=True, slots=True)
class LinearPattern:
    """A pattern that re2 has compiled."""

    compiled: Any
    folds_case: bool
    """Whether letters beyond ASCII may be letters of ASCII."""

    def __call__(self, text: str) -> bool:
        """Whether the whole text matches."""
        alike = text if text.isascii() else _BEYOND_ASCII.sub(lambda found: _stand_in(found.group()), text)
        return self.compiled.fullmatch(alike) is not None


@lru_cache(maxsize=4096)
def _stand_in(character: str) -> str:
    for stands, kind in ((_DIGIT, r"\d"), (_WORD, r"\w"), (_SPACE, r"\s")):
        if re.fullmatch(kind, character):
            return stands
    return _OTHER


@lru_cache(maxsize=512)
def in_linear_time(pattern: str) -> LinearPattern | None:
    """Matches in linear time; None without re2, or if it would not say the same."""
    try:
        import re2  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    options = re2.Options()
    options.log_errors = False
    try:
        translated = for_re2(pattern)
        return LinearPattern(re2.compile(translated, options), translated.startswith("(?is)"))
    except (Untranslatable, re2.error):
        return None


def lacks_re2(pattern: str) -> bool:
    """Whether this pattern would take linear time if re2 were installed.

    Example:
        >>> lacks_re2(r"(?=a)a")
        False
    """
    try:
        for_re2(pattern)
    except Untranslatable:
        return False
    return find_spec("re2") is None


def for_re2(pattern: str) -> str:
    """The same pattern for re2.

    Raises:
        Untranslatable: There is none.

    Example:
        >>> for_re2(r"^(?:a|\\d\\s){2,}?$")
        '(?s)(?:(?:a|[0-9\\ue001][\\\\t-\\\\r\\\\x1c- \\ue002])){2,}'
    """
    parsed = _parser.parse(pattern, re.DOTALL)
    flags = parsed.state.flags & ~(re.DOTALL | re.UNICODE)
    if flags & ~re.IGNORECASE:
        raise Untranslatable
    nodes = list(parsed)
    # The whole text has to match, so these mean nothing at its two ends.
    while nodes and str(nodes[0][0]) == "AT" and str(nodes[0][1]) in ("AT_BEGINNING", "AT_BEGINNING_STRING"):
        del nodes[0]
    while nodes and str(nodes[-1][0]) == "AT" and str(nodes[-1][1]) in ("AT_END", "AT_END_STRING"):
        del nodes[-1]
    return ("(?is)" if flags else "(?s)") + _written(nodes)


def _written(nodes: Any) -> str:
    return "".join(_one(str(kind), value) for kind, value in nodes)


def _one(kind: str, value: Any) -> str:
    if kind == "LITERAL":
        return _character(value)
    if kind == "NOT_LITERAL":
        return f"[^{_character(value)}]"
    if kind == "ANY":
        return "."
    if kind == "IN":
        return f"[{''.join(_member(str(name), what) for name, what in value)}]"
    if kind == "BRANCH":
        return f"(?:{'|'.join(map(_written, value[1]))})"
    if kind == "SUBPATTERN" and not value[1] and not value[2]:
        return f"(?:{_written(value[3])})"
    if kind in ("MAX_REPEAT", "MIN_REPEAT"):
        least, most, inner = value
        upper = "" if most is _parser.MAXREPEAT else most
        return f"(?:{_written(inner)}){{{least},{upper}}}"  # greedy or not, the whole text matches or does not
    raise Untranslatable


def _member(name: str, value: Any) -> str:
    if name == "NEGATE":
        return "^"
    if name == "LITERAL":
        return _character(value)
    if name == "RANGE":
        return f"{_character(value[0])}-{_character(value[1])}"
    return _CLASSES[str(value)]


def _character(code: int) -> str:
    if code > 127:  # with (?i) some of them match letters of ASCII
        raise Untranslatable
    return chr(code) if chr(code).isalnum() else f"\\x{{{code:x}}}"
