"""What the two sandboxes say to each other is plain data, and arguments change as the answer has changed its copies."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import pytest

from turnsmith.env.adapters.code_tests.plain_data import decode, encode
from turnsmith.env.adapters.code_tests.tests_side import change


def refuse(*about: object) -> Any:
    raise LookupError(about)


def across(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value, refuse))), refuse)


@pytest.mark.parametrize(
    "value",
    [
        *(
            None,
            True,
            1,
            -(2**53),
            2**60,
            -(2**400),
            0.1,
            -0.0,
            math.inf,
            "a\n\ud800\0",
            b"\xff",
            bytearray(b"x"),
            1 + 2j,
        ),
        *(
            bytearray(b"x"),
            [1, [2.0]],
            (1, (2,)),
            {1: {"a": (1,)}, (1, 2): [None]},
            {1, "a"},
            frozenset({(1, 2)}),
            [],
            {},
            (),
        ),
    ],
)
def test_plain_data_arrives_as_it_was(value: Any) -> None:
    arrived = across(value)
    assert arrived == value
    assert type(arrived) is type(value)
    assert repr(arrived) == repr(value) or isinstance(value, (set, frozenset))


def test_what_is_derived_from_a_builtin_type_arrives_as_that_type() -> None:
    class Always(int):
        def __eq__(self, other: object) -> bool:
            return True

    assert across(Always(3)) != 4
    assert across(Counter("aab")) == {"a": 2, "b": 1}
    assert type(across(Counter())) is dict


@pytest.mark.parametrize("value", [object(), refuse, range(3), [lambda: 1], {1: int}])
def test_nothing_else_is_plain(value: Any) -> None:
    with pytest.raises(LookupError):
        across(value)


@pytest.mark.parametrize("given", [{"q": 1}, {}, {"s": [[1]]}, {"i": "zz"}, {"b": "xyz"}, {"t": 1, "s": 1}])
def test_what_no_answer_of_ours_would_write_is_an_error(given: Any) -> None:
    with pytest.raises((LookupError, ValueError, TypeError)):
        decode(given, refuse)


def test_containers_change_in_place() -> None:
    inner, grid = [1, 2], {"a": [0]}
    whole = [inner, grid, {1}, (inner, 3)]
    change(whole, [[2, 1], {"b": 1}, {2}, ([2, 1], 3)])
    assert whole[0] is inner
    assert whole == [[2, 1], {"b": 1}, {2}, ([2, 1], 3)]
    assert grid == {"b": 1}
