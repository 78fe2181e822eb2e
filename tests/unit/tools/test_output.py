"""What a model is shown of a result: text, within its limit, head and tail."""

import datetime
import json
import re
import time
from dataclasses import dataclass
from typing import Any

import numpy
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnsmith.tools.output import UnsupportedResult, to_text, truncate


def by_byte(text: str) -> list[int]:
    return list(text.encode())


def by_word(text: str) -> list[int]:
    return list(range(len(re.findall(r"\s*\S+|\s+$", text))))


@dataclass
class Point:
    x: int


class Price(pydantic.BaseModel):
    euros: float


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        ("", ""),
        (None, "Done."),
        (True, "true"),
        (3, "3"),
        (2.5, "2.5"),
        ([1, "a", None], '[1,"a",null]'),
        ((1, 2), "[1,2]"),
        ({"a": {1, 2}, 3: "é"}, '{"a":[1,2],"3":"é"}'),
        (10**30, str(10**30)),
        ({"big": 10**30}, '{"big":' + str(10**30) + "}"),
        (Point(1), '{"x":1}'),
        (Price(euros=1), '{"euros":1.0}'),
        ([Price(euros=2)], '[{"euros":2.0}]'),
        (numpy.int64(3), "3"),
        ({"rows": numpy.array([[1, 2]])}, '{"rows":[[1,2]]}'),
        ([datetime.date(2026, 1, 2)], '["2026-01-02"]'),
    ],
)
def test_the_text_of_a_value(value: Any, text: str) -> None:
    assert to_text(value) == text


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize("value", [object(), b"bytes", {1, 2}, Point, [object()], endless(), [10**5000], lambda: 1])
def test_what_has_no_text_is_the_wrong_type(value: Any) -> None:
    with pytest.raises(UnsupportedResult, match="it returned"):
        to_text(value)


def test_half_surrogate_pairs_inside_lists_do_not_stop_it() -> None:
    assert truncate(to_text(["\ud800"]), 100) == ('["\ufffd"]', False)


@settings(deadline=None)
@given(st.text(st.characters(), max_size=400), st.integers(1, 80), st.sampled_from([by_byte, by_word, None]))
def test_a_cut_text_is_within_its_limit_and_clean(text: str, tokens: int, count: Any) -> None:
    shown, was_cut = truncate(text, tokens, count)
    shown.encode()
    length = (len(shown) + 3) // 4 if count is None else len(count(shown))
    assert length <= tokens or not shown
    if not was_cut:
        assert len(shown) == len(text) or any("\ud800" <= c <= "\udfff" for c in text)


def test_head_tail_and_what_is_left_out() -> None:
    text = "START " + "word " * 5000 + "END"
    shown, was_cut = truncate(text, 100, by_word)
    assert was_cut
    assert shown.startswith("START")
    assert shown.endswith("END")
    left = int(re.search(r"\[(\d+) characters left out\]", shown)[1])  # type: ignore[index]
    assert len(text) - left == len(re.sub(r" \[\d+ characters left out\] ", "", shown))
    assert 80 <= len(by_word(shown)) <= 100


def test_fifty_megabytes_are_cut_without_counting_them() -> None:
    counted: list[int] = []

    def count(text: str) -> list[int]:
        counted.append(len(text))
        return by_byte(text)

    text = "x" * 50_000_000
    shown, was_cut = truncate(text, 1024, count)
    assert was_cut
    assert 1000 <= len(shown) <= 1024
    assert sum(counted) < 100_000


def test_a_short_text_is_never_counted() -> None:
    def count(text: str) -> list[int]:
        raise AssertionError

    assert truncate("short", 1024, count) == ("short", False)


def test_a_large_value_is_written_in_little_time() -> None:
    value = [{"name": f"row {n}", "price": n} for n in range(200_000)]
    began = time.process_time()  # not the wall clock: other work shares the machine
    assert json.loads(to_text(value))[-1]["price"] == 199_999
    assert time.process_time() - began < 10
