"""Strict JSON for values that come from users: never raises, and writes NaN and infinity as strings."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, cast

from turnsmith.text import replace_surrogates

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_MAX_DEPTH = 50
_MAX_BITS = 14_000
"""Python neither writes nor reads decimal numbers of more than 4,300 digits."""


def to_json(value: Any) -> str:
    """One line of JSON: NaN as `"NaN"`, tensors and arrays as lists, unknown objects as their `str`.

    Example:
        >>> to_json({"loss": float("nan"), "shape": (2, 3), 4: {1}})
        '{"loss":"NaN","shape":[2,3],"4":[1]}'
    """
    return json.dumps(_plain(value, _MAX_DEPTH), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def restore_number(value: Any) -> Any:
    """Turn the string that `to_json` writes for NaN or infinity back into the number.

    Example:
        >>> restore_number("-Infinity"), restore_number("text")
        (-inf, 'text')
    """
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return replace_surrogates(str(value))
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _MAX_BITS else hex(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _name(value)
    if depth == 0:
        return replace_surrogates(_text(value))
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {replace_surrogates(_text(key)): _plain(item, depth - 1) for key, item in items}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth - 1) for item in cast("list[Any]", value)]
    return _foreign(value, depth)


def _foreign(value: Any, depth: int) -> Any:
    """Arrays and tensors as lists, anything else as its `str`."""
    try:
        return _plain(value.tolist(), depth - 1)
    except Exception:  # noqa: BLE001  (a missing or failing `tolist` must not lose the record)
        return replace_surrogates(_text(value))


def _name(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001  (as above)
        return f"<{type(value).__name__}>"
