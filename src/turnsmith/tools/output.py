"""Convert a tool's return value to text for the model, truncated to the tool's output limit."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from typing import Any

from turnsmith.text import replace_surrogates

Encode = Callable[[str], Sequence[int]]
"""A tokenizer's `encode`; only the number of tokens is used."""


class UnsupportedResult(Exception):
    """The tool returned a value that has no text form."""


def to_text(value: Any) -> str:
    """The text form of a tool's return value.

    Example:
        >>> to_text("as it is"), to_text(None), to_text({"price": 3, "sold": True})
        ('as it is', 'Done.', '{"price":3,"sold":true}')
        >>> to_text(object())
        Traceback (most recent call last):
        turnsmith.tools.output.UnsupportedResult: it returned object; tools return text, numbers, lists, dicts or None
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
    raise UnsupportedResult(f"it returned {type(value).__name__}; tools return text, numbers, lists, dicts or None")


def _json(value: Any) -> str:
    try:
        import orjson

        # Not OPT_SERIALIZE_NUMPY: it imports NumPy for every type that it does not know.
        return orjson.dumps(value, default=_to_plain, option=orjson.OPT_NON_STR_KEYS).decode()
    except Exception:  # not installed, integers over 64 bits, lone surrogates, too deep
        pass
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_to_plain)
    except (Exception, RecursionError) as error:
        raise UnsupportedResult(
            f"it returned {type(value).__name__} with a part that has no JSON form: {error}"
        ) from None


def _to_plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):  # pydantic
        return value.model_dump(mode="json")
    if hasattr(value, "tolist"):  # NumPy
        return value.tolist()
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    raise TypeError(f"{type(value).__name__} has no JSON form")


_MAX_TOKEN_LENGTH = 8
"""A token is expected to have at most so many characters; in ordinary text it has three to five."""


def truncate(text: str, tokens: int, encode: Encode | None = None) -> tuple[str, bool]:
    """Shorten a text to `tokens` tokens: its head, a note of how much was left out, and its tail.

    Never encodes much more text than could fit. Without `encode`, four characters count as a token.

    Returns:
        The text, and whether it was shortened.

    Example:
        >>> truncate("0123456789" * 20, 20)[0]
        '01234567890123456789012345 [148 characters left out] 45678901234567890123456789'
        >>> truncate("short", 20)
        ('short', False)
    """
    # A text has at most as many tokens as bytes, so most results need not be encoded at all.
    if len(text) * (1 if text.isascii() else 4) < tokens:
        return replace_surrogates(text), False
    length, half = len(text), tokens * _MAX_TOKEN_LENGTH // 2
    if length <= 2 * half:
        text = replace_surrogates(text)
        if _count_tokens(text, encode) <= tokens:
            return text, False
        half = (length + 1) // 2
    return _join(replace_surrogates(text[:half]), replace_surrogates(text[-half:]), length, tokens, encode), True


def _join(head: str, tail: str, length: int, tokens: int, encode: Encode | None) -> str:
    for _ in range(20):  # every round shortens by the factor that was too much; two or three are enough
        note = f" [{length - len(head) - len(tail)} characters left out] "
        text = f"{head}{note}{tail}"
        text_tokens, note_tokens = _count_tokens(text, encode), _count_tokens(note, encode)
        if text_tokens <= tokens:
            return text
        left = tokens - note_tokens
        if left < 4:
            break
        share = min(0.98, left / max(1, text_tokens - note_tokens))
        head, tail = head[: int(len(head) * share)], tail[len(tail) - int(len(tail) * share) :]
    # The limit is too small for a note.
    while head and (head_tokens := _count_tokens(head, encode)) > tokens:
        head = head[: int(len(head) * min(0.9, tokens / head_tokens))]
    return head


def _count_tokens(text: str, encode: Encode | None) -> int:
    return (len(text) + 3) // 4 if encode is None else len(encode(text))
