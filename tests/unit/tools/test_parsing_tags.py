"""Calls between `<tool_call>` tags, and as OpenAI's API writes them."""

from __future__ import annotations

import pytest

from turnsmith.tools.parsing import FunctionCallingParser, ParsedAction, ProblemKind


def calls(action: ParsedAction) -> list[tuple]:
    return [(call.name, call.arguments) for call in action.calls]


def kind(action: ParsedAction) -> ProblemKind | None:
    return action.problem and action.problem.kind


def test_tags_several_and_the_last_not_closed():
    text = (
        'A <tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call> B\n'
        '<tool_call>{"name": "b", "arguments": {"s": "</tool_call>"}}</tool_call>'
        '<tool_call>{"name": "c"}</tool_call><tool_call>{"name": "d", "arguments": {}}'
    )
    action = FunctionCallingParser().parse(text)
    assert calls(action) == [("a", {"x": 1}), ("b", {"s": "</tool_call>"}), ("c", {}), ("d", {})]
    assert (action.text, action.problem) == ("A\nB", None)


def test_a_broken_call_that_is_not_closed_does_not_hide_the_next_one():
    action = FunctionCallingParser().parse('<tool_call>{"name": <tool_call>{"name": "b"}</tool_call> C')
    assert (calls(action), kind(action), action.text) == ([("b", {})], ProblemKind.UNFINISHED, "C")


def test_text_after_the_closing_tag_is_kept_whatever_the_call_looks_like():
    for body in (
        '{"name": "a", "arguments": {}}',
        '{"name": "a", "arguments": {"s": "</tool_call>"}} more',
        '{"x"',
        "",
    ):
        action = FunctionCallingParser().parse(f"A <tool_call>{body}</tool_call> B")
        assert action.text == "A\nB"


def test_a_tag_in_a_string_of_a_call_is_part_of_the_string():
    text = '<tool_call>{"name": "a", "arguments": {"s": "<tool_call>", "t": "</tool_call>"}}</tool_call> B <tool_call>'
    action = FunctionCallingParser().parse(text + '{"name": "b", "arguments": {}}</tool_call> C')
    assert calls(action) == [("a", {"s": "<tool_call>", "t": "</tool_call>"}), ("b", {})]
    assert (action.text, action.problem) == ("B\nC", None)


def test_null_between_tags_is_a_problem():
    assert kind(FunctionCallingParser().parse("<tool_call>null</tool_call>")) == ProblemKind.MISSING_NAME


def test_a_tag_that_is_never_closed_before_the_next():
    action = FunctionCallingParser().parse(
        '<tool_call>{"name": "a", "arguments": {}}\n<tool_call>{"name": "b", "arguments": {}}'
    )
    assert calls(action) == [("a", {}), ("b", {})]


def test_a_bracket_too_many_is_forgiven():
    assert calls(FunctionCallingParser().parse('<tool_call>{"name": "a", "arguments": {}}}</tool_call>')) == [("a", {})]


def test_a_broken_tag_does_not_swallow_the_next():
    text = '<tool_call>{"name": "a", "arguments": {"q": "x</tool_call> '
    text += '<tool_call>{"name": "b", "arguments": {}}</tool_call>'
    action = FunctionCallingParser().parse(text)
    assert calls(action) == [("b", {})]
    assert kind(action) == ProblemKind.UNFINISHED
    assert "`a`" in str(action.problem)


@pytest.mark.parametrize("body", ["", " ", "hello", '"text"', "[]", "{}", '{"x": 1}', "<function=a></function>"])
def test_a_tag_without_a_call_is_a_problem(body):
    action = FunctionCallingParser().parse(f"<tool_call>{body}</tool_call>")
    assert action.calls == []
    assert action.problem is not None
    assert action.problem.sentence.endswith("</tool_call>.")


def test_openai_tool_calls_with_ids_and_arguments_as_text():
    action = FunctionCallingParser().parse(
        '{"tool_calls": [{"id": "c1", "type": "function", "function": {"name": "a", "arguments": "{\\"x\\": 1}"}}, '
        '{"id": "c2", "function": {"name": "b", "arguments": ""}}]}'
    )
    assert [(call.id, call.name, call.arguments) for call in action.calls] == [("c1", "a", {"x": 1}), ("c2", "b", {})]
    assert calls(FunctionCallingParser().parse('{"function_call": {"name": "a", "arguments": "{}"}}')) == [("a", {})]
    assert calls(FunctionCallingParser().parse('{"name": "a", "parameters": {"x": 1}}')) == [("a", {"x": 1})]


def test_openai_arguments_that_are_not_json_are_told_with_the_tool():
    action = FunctionCallingParser().parse('{"tool_calls": [{"function": {"name": "a", "arguments": "{x: 1}"}}]}')
    assert kind(action) == ProblemKind.INVALID_JSON
    assert "the arguments of the call to `a`" in str(action.problem)


def test_tool_calls_inside_tool_calls_inside_tool_calls():
    text = '{"tool_calls": [' * 400 + "]}" * 400
    assert FunctionCallingParser().parse(text).calls == []
