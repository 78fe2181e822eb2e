"""What holds for every parser."""

from __future__ import annotations

import pytest

from turnsmith.tools.definition import ToolDefinition
from turnsmith.tools.parsing import (
    FunctionCallingParser,
    JSONActionParser,
    ParsedAction,
    PlainTextParser,
    ProblemKind,
    ReActActionParser,
)
from turnsmith.tools.parsing.json_text import read_json

SEARCH = ToolDefinition("search", "Look something up.", {"type": "object", "properties": {"query": {"type": "string"}}})


def calls(action: ParsedAction) -> list[tuple]:
    return [(call.name, call.arguments) for call in action.calls]


def kind(action: ParsedAction) -> ProblemKind | None:
    return action.problem and action.problem.kind


@pytest.mark.parametrize(
    ("parser", "attempt"),
    [
        (JSONActionParser(), '{"a": 1} '),
        (FunctionCallingParser(), '<tool_call>{"tool_calls": [1]}'),
        (ReActActionParser(), "one Action: "),
    ],
)
def test_256_attempts_are_made(parser, attempt):
    assert parser.parse(attempt * 255).problem is None
    action = parser.parse(attempt * 257)
    assert kind(action) == ProblemKind.TOO_MANY_CALLS
    assert "more than 256" in action.problem.sentence


@pytest.mark.parametrize(("length", "count"), [(128, 1), (129, 0)])
def test_a_name_has_at_most_128_characters(length, count):
    name = "n" * length
    assert len(JSONActionParser().parse(f'{{"tool": "{name}", "arguments": {{}}}}').calls) == count
    assert len(ReActActionParser().parse(f"Action: {name}\nAction Input: {{}}").calls) == count


@pytest.mark.parametrize("parser", [JSONActionParser(), ReActActionParser(), FunctionCallingParser()])
def test_a_call_in_the_thinking_is_a_draft(parser):
    call = '<tool_call>{"name": "a", "arguments": {}}</tool_call>\nAction: a\nAction Input: {}\n'
    assert parser.parse(f"<think>perhaps {call}</think>\n\nNo.") == ParsedAction("No.")
    assert parser.parse(f"perhaps {call}</think>No.") == ParsedAction("No.")
    assert kind(parser.parse(f"\n<think>perhaps {call}")) == ProblemKind.UNFINISHED


def test_reading_json_ends_after_the_value_or_where_the_parser_stopped():
    assert read_json('see {"a": 1} there', 4, 6, 18) == ({"a": 1}, 13, None)
    assert read_json('{"a": 1}', 0, 8, 8).end == 8
    assert read_json('{"a": }', 0, 7, 7).end == 6
    assert read_json("x", 0, 1, 1).end == 1
    assert read_json('{"a": "' + "x" * 9000 + '"} rest', 0, 10, 9014).end == 9010


def test_reading_json_stops_at_the_limit():
    reading = read_json('{"a": 1}', 0, 2, 7)
    assert (reading.value, reading.end, reading.error.msg) == (None, 7, "unexpected end of data")


@pytest.mark.parametrize("parser", [JSONActionParser, ReActActionParser, FunctionCallingParser, PlainTextParser])
def test_a_text_that_is_too_long_is_not_read(parser):
    assert parser(max_chars=10).parse("x" * 10) == ParsedAction("x" * 10)
    assert kind(parser(max_chars=10).parse("x" * 11)) == ProblemKind.TOO_LARGE
    assert kind(parser().parse("x" * (2**20 + 1))) == ProblemKind.TOO_LARGE
    assert parser().parse("x" * 2**20).problem is None
    assert kind(parser().parse("x" * 2_000_000)) == ProblemKind.TOO_LARGE


@pytest.mark.parametrize(
    "parser", [JSONActionParser(), ReActActionParser(), FunctionCallingParser(), PlainTextParser()]
)
def test_half_characters_are_replaced(parser):
    assert parser.parse("a\ud800b\udfff\ud800").text == "a\ufffdb\ufffd\ufffd"


@pytest.mark.parametrize("parser", [JSONActionParser(), ReActActionParser(), FunctionCallingParser()])
def test_the_instructions_show_a_form_that_the_parser_reads(parser):
    told = parser.instructions([SEARCH])
    assert '{"name":"search","description":"Look something up.","parameters":{"type":"object"' in told
    assert parser.instructions([]) == ""


@pytest.mark.parametrize("parser", [JSONActionParser(), ReActActionParser(), FunctionCallingParser()])
def test_an_answer_right_after_the_closing_tag_of_the_thinking(parser):
    assert parser.parse("</think>No.") == ParsedAction("No.")
    assert not parser.is_native


def test_plain_text_is_left_as_it_is():
    text = ' <think>{"tool": "a", "arguments": {}}\nAction: b '
    assert PlainTextParser().parse(text) == ParsedAction(text)
    assert PlainTextParser().instructions([SEARCH]) == ""
