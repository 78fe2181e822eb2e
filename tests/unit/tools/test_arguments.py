"""Nothing that a model passes costs more than the limits, or reaches a tool beyond them."""

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnsmith.text import replace_surrogates
from turnsmith.tools import arguments as limits
from turnsmith.tools.arguments import BadArguments, check_arguments

TEXT = st.text(st.characters(), max_size=25)  # surrogates included
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(TEXT, inner, max_size=6),
    max_leaves=12,
)
SMALL = {"MAX_DEPTH": 3, "MAX_SIZE": 60, "MAX_DIGITS": 5, "MAX_ITEMS": 8}


def outcome(arguments: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    try:
        return check_arguments(arguments), ""
    except BadArguments as refused:
        return None, str(refused)


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max((depth(item) for item in inner), default=0)


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in (key, *leaves(item))]
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, list) else [value]


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(TEXT, JSON, max_size=6))
def test_what_passes_is_within_the_limits_and_can_be_written(arguments: dict[str, Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, limit in SMALL.items():
            patch.setattr(limits, name, limit)
        passed, sentence = outcome(arguments)
    if passed is None:
        assert sentence.endswith(".")
        assert len(sentence) < 120
        return
    json.dumps(passed, ensure_ascii=False, allow_nan=False).encode()
    assert depth(passed) <= 3
    texts = [leaf for leaf in leaves(passed) if isinstance(leaf, str)]
    assert sum(len(text.encode()) for text in texts) <= 60
    assert all(abs(leaf) < 10**5 for leaf in leaves(passed) if type(leaf) is int)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(max_size=9), JSON, max_size=4))
def test_clean_arguments_pass_unchanged(arguments: dict[str, Any]) -> None:
    passed, sentence = outcome(arguments)
    if passed is None:
        assert "finite" in sentence or "digits" in sentence
    else:
        assert passed == arguments or "\ufffd" in str(passed)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(TEXT, JSON, max_size=6))
def test_checking_twice_changes_nothing(arguments: dict[str, Any]) -> None:
    # A tool of an environment in another process is checked on both sides.
    passed, _ = outcome(arguments)
    if passed is not None:
        assert check_arguments(json.loads(json.dumps(passed))) == passed


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_each_limit_has_its_sentence() -> None:
    endless: list[Any] = []
    endless.append(endless)
    shared: Any = "x"
    for _ in range(30):  # 10**30 values when written out
        shared = [shared] * 10
    for value, word in [
        (nested(32), "nested more than 32 levels"),
        (nested(100_000), "nested more than 32 levels"),
        (endless, "nested"),
        (shared, "more than 4096 values"),
        (10**64, "more than 64 digits"),
        (-(10**5000), "more than 64 digits"),
        ("x" * 65_537, "longer than 65536 characters"),
        (["é" * 20_000] * 2, "longer than 65536 bytes"),
        (float("nan"), "not finite"),
        ([0] * 4096, "more than 4096 values"),
    ]:
        began = time.process_time()  # not the wall clock: other work shares the machine
        with pytest.raises(BadArguments, match=word):
            check_arguments({"value": value})
        assert time.process_time() - began < 3


def test_the_limits_themselves_are_allowed() -> None:
    for value in (nested(31), 10**64 - 1, "x" * 65_000, [0] * 4095):
        assert check_arguments({"v": value}) == {"v": value}


def test_arguments_must_be_an_object() -> None:
    for wrong in (None, [], "text", 3):
        with pytest.raises(BadArguments, match="must be an object"):
            check_arguments(wrong)


def test_half_surrogate_pairs_are_replaced_in_keys_too() -> None:
    assert check_arguments({"a\ud800": ["\udc00b"]}) == {"a\ufffd": ["\ufffdb"]}


def test_a_whole_surrogate_pair_becomes_its_character() -> None:
    assert replace_surrogates("\ud83d\ude00") == "\U0001f600"
