"""From what a tool returned to what the model is told: text, and no more of it than the tool's limit."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from typing import Any

from turnsmith.text import replace_surrogates

Count = Callable[[str], Sequence[int]]
"""A tokenizer's encode: only the length of what it gives is used."""


class WrongType(Exception):
    """The tool returned something that cannot be told to a model."""


def to_text(value: Any) -> str:
    """The text for what a tool returned.

    Example:
        >>> to_text("as it is"), to_text(None), to_text({"price": 3, "sold": True})
        ('as it is', 'Done.', '{"price":3,"sold":true}')
        >>> to_text(object())
        Traceback (most recent call last):
        turnsmith.tools.output.WrongType: it returned object; a tool must return text, numbers, lists, dicts or None
    """
    if isinstance(value, str):
        return value
    if value is None:
        return "Done."
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float, list, tuple, dict)):
        return _json(value)
    if not isinstance(value, type) and (
        is_dataclass(value) or hasattr(value, "model_dump") or hasattr(value, "tolist")
    ):
        return _json(value)
    raise WrongType(f"it returned {type(value).__name__}; a tool must return text, numbers, lists, dicts or None")


def _json(value: Any) -> str:
    try:
        import orjson

        # Not OPT_SERIALIZE_NUMPY: it imports NumPy for every type that it does not know.
        return orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS).decode()
    except Exception:  # not installed, whole numbers over 64 bits, half surrogate pairs, too deep
        pass
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)
    except (Exception, RecursionError) as error:
        raise WrongType(f"it returned {type(value).__name__} with a part that has no JSON form: {error}") from None


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):  # pydantic
        return value.model_dump(mode="json")
    if hasattr(value, "tolist"):  # NumPy
        return value.tolist()
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def cut(text: str, tokens: int, count: Count | None = None) -> tuple[str, bool]:
    """At most `tokens` tokens of a text: its head, a note of how much was left out, and its tail.

    Never counts the tokens of much more text than could fit. Without `count`, four characters are a token.

    Example:
        >>> cut("0123456789" * 20, 20)[0]
        '01234567890123456789012345 [148 characters left out] 45678901234567890123456789'
        >>> cut("short", 20)
        ('short', False)
    """
    # No tokenizer makes more tokens than there are bytes, so most results need no counting at all.
    if len(text) * (1 if text.isascii() else 4) < tokens:
        return replace_surrogates(text), False
    whole, half = len(text), tokens * _WIDEST // 2
    if whole <= 2 * half:
        text = replace_surrogates(text)
        if _length(text, count) <= tokens:
            return text, False
        half = (whole + 1) // 2
    return _join(replace_surrogates(text[:half]), replace_surrogates(text[-half:]), whole, tokens, count), True


_WIDEST = 8
"""Characters that a token stands for at the most; ordinary text has three to five."""


def _join(head: str, tail: str, whole: int, tokens: int, count: Count | None) -> str:
    for _ in range(20):  # every round is shorter by the factor that was too much; two or three are enough
        note = f" [{whole - len(head) - len(tail)} characters left out] "
        text = f"{head}{note}{tail}"
        length, noted = _length(text, count), _length(note, count)
        if length <= tokens:
            return text
        room = tokens - noted
        if room < 4:
            break
        share = min(0.98, room / max(1, length - noted))
        head, tail = head[: int(len(head) * share)], tail[len(tail) - int(len(tail) * share) :]
    # The limit is too small for a note.
    while head and (length := _length(head, count)) > tokens:
        head = head[: int(len(head) * min(0.9, tokens / length))]
    return head


def _length(text: str, count: Count | None) -> int:
    return (len(text) + 3) // 4 if count is None else len(count(text))
