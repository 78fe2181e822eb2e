"""JSON and YAML for values that come from users."""

from __future__ import annotations

import json
from enum import IntEnum, StrEnum

import pytest

from turnsmith.records.json_text import restore_number, to_json
from turnsmith.records.yaml_text import YamlProblem, dump_yaml, parse_yaml


class Colour(StrEnum):
    RED = "red"


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


def test_json_keeps_fifty_levels_and_writes_what_is_deeper_as_a_string() -> None:
    assert json.loads(to_json(nested(49))) == nested(49)
    value = json.loads(to_json(nested(50)))
    for _ in range(50):
        (value,) = value
    assert value == "[]"


def test_an_array_counts_as_one_level() -> None:
    class Array:
        def tolist(self) -> object:
            return [1]

    value: object = Array()
    for _ in range(48):
        value = [value]
    assert to_json(value) == "[" * 49 + "1" + "]" * 49
    assert '["[1]"]' in to_json([value])
    assert "Array" in to_json([[value]])


def test_json_has_no_subclasses_of_plain_types() -> None:
    assert to_json({"colour": Colour.RED, "yes": True, "none": None}) == '{"colour":"red","yes":true,"none":null}'


def test_numbers_that_json_lacks_come_back() -> None:
    values = [json.loads(to_json(number)) for number in (float("inf"), float("-inf"))]
    assert values == ["Infinity", "-Infinity"]
    assert [restore_number(value) for value in values] == [float("inf"), float("-inf")]
    assert restore_number(["NaN"]) == ["NaN"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1_000", 1000),
        ("0x10", 16),
        ("-.5", -0.5),
        (".inf", float("inf")),
        ("no", "no"),
        ("012", "012"),
        ("True", True),
        ("~", None),
        ("", None),
        ("2024-01-01", "2024-01-01"),
    ],
)
def test_yaml_follows_the_core_schema(text: str, value: object) -> None:
    parsed = parse_yaml(text)
    assert (parsed, type(parsed)) == (value, type(value))


@pytest.mark.parametrize("text", ["no", "1e-4", "012", "yes", "~", "2024-01-01", "0o7"])
def test_a_string_that_looks_like_something_else_is_quoted(text: str) -> None:
    assert parse_yaml(dump_yaml({"text": text})) == {"text": text}


def test_yaml_writes_enums_tuples_and_other_objects_plainly() -> None:
    shared = [1]
    value = {"colour": Colour.RED, "pair": (1, 2), "once": shared, "twice": shared, "type": int}
    expected = {"colour": "red", "pair": [1, 2], "once": [1], "twice": [1], "type": "<class 'int'>"}
    assert parse_yaml(dump_yaml(value)) == expected
    assert "&" not in dump_yaml(value)


def test_yaml_names_the_line_of_an_error() -> None:
    with pytest.raises(YamlProblem, match=r"duplicate key 'b' \(line 3\)"):
        parse_yaml("a: 1\nb: 2\nb: 3\n")
    with pytest.raises(YamlProblem, match=r"\(line 2\)$"):
        parse_yaml("a: 1\n  b: 2\n")
    assert parse_yaml("{a: {b: 1}, c: {b: 2}}") == {"a": {"b": 1}, "c": {"b": 2}}


def test_yaml_that_would_grow_without_bound_is_refused() -> None:
    assert parse_yaml(str(2**4096 - 1)) == 2**4096 - 1
    with pytest.raises(YamlProblem, match="more than 4096 bits"):
        parse_yaml(str(2**4096))
    # The list and its 1000 numbers count 1001 however they are reached; then the outer list, its key and the mapping.
    text = "[&a [" + ", ".join(["0"] * 999) + "], {}]"
    assert len(parse_yaml(text.replace("{}", ", ".join(["*a"] * 98)))) == 99
    with pytest.raises(YamlProblem, match="more than 100000 values"):
        parse_yaml(text.replace("{}", ", ".join(["*a"] * 99) + ", 0"))


def test_subclasses_of_numbers_are_written_as_numbers_and_read_as_such() -> None:
    class Level(IntEnum):
        HIGH = 3

    class Share(float):
        pass

    assert parse_yaml(dump_yaml({"level": Level.HIGH, "share": Share(0.25)})) == {"level": 3, "share": 0.25}


def test_yaml_that_is_nested_too_deeply_is_a_problem() -> None:
    for text in ("[" * 5000 + "]" * 5000, "a: &a [*a]", "a: &a {b: *a}"):
        with pytest.raises(YamlProblem, match="nested too deeply, or contains itself"):
            parse_yaml(text)
