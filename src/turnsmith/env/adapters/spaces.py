"""Gymnasium's spaces as text: how to answer, what an answer means, and what an observation looks like.

Spaces are recognised by the names of their classes, so that nothing here imports Gymnasium.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from turnsmith.env.adapters.final_answers import final_answer

MOST_NUMBERS = 64
"""The most numbers of a Box or MultiDiscrete; more are an image, not text."""
_WORD = re.compile(r"[a-z_]+|-?\d+")
_DIGITS = 4


class UnreadableAction(ValueError):
    """The answer is not an action; the message tells the model how to answer."""


def kind_of(space: Any) -> str:
    """The name of the kind of space; empty for one that has no text form.

    Example:
        >>> kind_of(object())
        ''
    """
    names = [base.__name__ for base in type(space).__mro__]
    kind = next((name for name in names if name in _READ), "")
    if kind in ("Box", "MultiDiscrete", "MultiBinary") and math.prod(space.shape) > MOST_NUMBERS:
        return ""
    if kind in ("Tuple", "Dict") and not all(kind_of(part) for part in _parts(space).values()):
        return ""
    return kind


def describe_answer(space: Any, names: Sequence[str] = ()) -> str:
    """How to answer with an action of this space, as the end of "Answer with ..."."""
    kind = kind_of(space)
    if kind == "Discrete":
        if names:
            return f"one of these words: {', '.join(names)}"
        return f"a number from {int(space.start)} to {int(space.start) + int(space.n) - 1}"
    if kind == "Text":
        return f"a text of {space.min_length} to {space.max_length} characters"
    if kind == "MultiDiscrete":
        most = ", ".join(str(int(one) - 1) for one in space.nvec.flatten())
        return f"{space.nvec.size} numbers from 0, separated by spaces; the largest are {most}"
    if kind == "MultiBinary":
        return f"{math.prod(space.shape)} numbers that are 0 or 1, separated by spaces"
    if kind == "Box":
        count = math.prod(space.shape)
        lows, highs = (", ".join(map(_short, side.flatten().tolist())) for side in (space.low, space.high))
        return f"{count} {'number' if count == 1 else 'numbers'} between {lows} and {highs}"
    parts = [f"{name}: {describe_answer(part)}" for name, part in _parts(space).items()]
    return f"JSON, {'a list' if kind == 'Tuple' else 'an object'} of {'; '.join(parts)}"


def read_action(space: Any, text: str, names: Sequence[str] = ()) -> Any:
    """The action that an answer names.

    Raises:
        UnreadableAction: It stands for none.
    """
    kind, answer = kind_of(space), final_answer(text)
    if kind == "Discrete":
        start = int(space.start)
        # Numbers are accepted beside names, because the environment's documentation has them.
        options = {str(start + number): start + number for number in range(int(space.n))}
        options |= {name.lower(): start + number for number, name in enumerate(names)}
        found = {options[word] for word in _WORD.findall(answer.lower()) if word in options}
        if len(found) == 1:
            return found.pop()
    elif kind == "Text":
        if space.contains(answer):
            return answer
    elif kind in ("Tuple", "Dict"):
        try:
            return _READ[kind](space, json.loads(answer))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            pass
    else:
        try:
            return _READ[kind](space, [float(word) for word in re.split(r"[\s,;\[\]()]+", answer) if word])
        except (ValueError, OverflowError):
            pass
    raise UnreadableAction(f"That is not an action. Answer with {describe_answer(space, names)}.")


def show_observation(space: Any, observation: Any) -> str:
    """An observation as text: that of a Text space as it is, any other as JSON with four digits."""
    return str(observation) if kind_of(space) == "Text" else json.dumps(_plain(observation), ensure_ascii=False)


def _parts(space: Any) -> dict[Any, Any]:
    return dict(space.spaces) if isinstance(space.spaces, Mapping) else dict(enumerate(space.spaces))


def _read_discrete(space: Any, value: Any) -> Any:
    if int(value) != value or not space.contains(int(value)):
        raise ValueError(value)
    return int(value)


def _read_array(space: Any, value: Any) -> Any:
    import numpy as np  # not at the top: worker processes load this module, and most do not need it

    given = np.asarray(value, dtype=float).reshape(space.shape)
    array = given.astype(space.dtype)
    is_rounded = array.dtype.kind in "iu" and not np.array_equal(array, given)
    if is_rounded or not space.contains(array):
        raise ValueError(value)
    return array


def _read_text(space: Any, value: Any) -> Any:
    if not isinstance(value, str) or not space.contains(value):
        raise ValueError(value)
    return value


def _read_tuple(space: Any, value: Any) -> Any:
    parts = _parts(space)
    if not isinstance(value, list) or len(value) != len(parts):
        raise ValueError(value)
    return tuple(_READ[kind_of(part)](part, value[number]) for number, part in parts.items())


def _read_dict(space: Any, value: Any) -> Any:
    parts = _parts(space)
    if not isinstance(value, dict) or value.keys() != parts.keys():
        raise ValueError(value)
    return {name: _READ[kind_of(part)](part, value[name]) for name, part in parts.items()}


_READ: dict[str, Any] = {
    "Discrete": _read_discrete,
    "Text": _read_text,
    "MultiDiscrete": _read_array,
    "MultiBinary": _read_array,
    "Box": _read_array,
    "Tuple": _read_tuple,
    "Dict": _read_dict,
}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if hasattr(value, "tolist"):  # NumPy's arrays and numbers
        return _plain(value.tolist())
    return float(_short(value)) if isinstance(value, float) else value


def _short(value: float) -> str:
    return f"{value:.{_DIGITS}g}"
