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

SEARCH = ToolDefinition("search", "Look something up.", {"type": "object", "properties": {"query": {"type": "string"}}})


def calls(action: ParsedAction) -> list[tuple]:
    return [(call.name, call.arguments) for call in action.calls]


def kind(action: ParsedAction) -> ProblemKind | None:
    return action.problem and action.problem.kind


# ---- JSON


@pytest.mark.parametrize("name", ["tool", "action", "name", "tool_name", "function"])
@pytest.mark.parametrize("arguments", ["arguments", "args", "parameters", "action_input", "input"])
def test_json_knows_the_spellings(name, arguments):
    action = JSONActionParser().parse(f'Well. {{"{name}": "search", "{arguments}": {{"query": "rain"}}}} Done.')
    assert action == ParsedAction("Well.\nDone.", action.calls)
    assert calls(action) == [("search", {"query": "rain"})]


def test_json_in_a_fenced_block_takes_the_fence_with_it():
    action = JSONActionParser().parse('So:\n```json\n{"tool": "a", "arguments": {"x": 1}}\n```\nand\n```\nx = 1\n```')
    assert calls(action) == [("a", {"x": 1})]
    assert action.text == "So:\nand\n```\nx = 1\n```"


def test_json_reads_several_calls_in_a_list_or_one_after_another():
    one, two = '{"tool": "a", "arguments": {"x": {"y": [1]}}}', '{"tool": "b", "args": {}}'
    for text in (
        f"[{one}, {two}]",
        f"{one}\n{two}",
        f"first {one}, then {two}",
        f"```json\n[\n  {one},\n  {two}\n]\n```",
    ):
        assert calls(JSONActionParser().parse(text)) == [("a", {"x": {"y": [1]}}), ("b", {})], text


def test_json_that_is_no_call_is_left_in_the_text():
    text = 'My answer: {"name": "Bob", "age": 3} and {x} and {"a": [1, 2]}'
    assert JSONActionParser().parse(text) == ParsedAction(text)


@pytest.mark.parametrize("name", ['""', '" "', "null", '"' + "a" * 200 + '"'])
def test_a_name_that_is_none_is_a_problem(name):
    for text in (f'{{"tool": {name}, "arguments": {{}}}}', f'[{{"name": {name}, "arguments": {{}}}}]'):
        action = JSONActionParser().parse(text)
        assert (action.calls, kind(action)) == ([], ProblemKind.MISSING_NAME)
    assert calls(JSONActionParser().parse('{"tool": " a ", "arguments": {}}')) == [("a", {})]


def test_json_without_arguments():
    assert calls(JSONActionParser().parse('{"tool": "look"}')) == [("look", {})]
    assert calls(JSONActionParser().parse('{"tool": "look", "arguments": null}')) == [("look", {})]
    action = JSONActionParser().parse('{"tool": "search", "query": "rain"}')
    assert kind(action) == ProblemKind.BAD_ARGUMENTS
    assert action.problem is not None
    assert action.problem.sentence.startswith("The call to `search` has no arguments: write {")


def test_a_plain_input_goes_under_one_name():
    assert calls(JSONActionParser().parse('{"action": "search", "action_input": "rain"}')) == [
        ("search", {"input": "rain"})
    ]
    assert JSONActionParser().parse('{"action": "Final Answer", "action_input": "42"}') == ParsedAction("42")


@pytest.mark.parametrize(
    ("text", "expected", "part"),
    [
        (
            '{"tool": "a" "arguments": {}}',
            ProblemKind.INVALID_JSON,
            "comma or a closing bracket is missing near character 14",
        ),
        ("{'tool': 'a', 'arguments': {}}", ProblemKind.INVALID_JSON, "key in double quotes"),
        ('{tool: "a", arguments: {}}', ProblemKind.INVALID_JSON, "key in double quotes"),
        ('{"tool": "a", "arguments": {"x": True}}', ProblemKind.INVALID_JSON, "The call to `a` is not valid JSON"),
        ('{"tool": "a", "arguments": {"x": "1\n2"}}', ProblemKind.INVALID_JSON, "must be written as \\n"),
        ('{"tool": "a", "arguments": {"x": "C:\\dir"}}', ProblemKind.INVALID_JSON, "backslash"),
        ('{"tool": "a", "arguments": {"x": NaN}}', ProblemKind.INVALID_JSON, "near character 34"),
        ('{"tool": "a", "arguments": {"x": 1}', ProblemKind.UNFINISHED, "not closed"),
        ('{"tool": "a", "arguments": {"x": "\\ud800"}}', ProblemKind.INVALID_JSON, "half a character"),
        ('{"tool": "a", "arguments": {"x": 1e999}}', ProblemKind.NUMBER_TOO_LARGE, "too large"),
        (f'{{"tool": "a", "arguments": {{"x": {"1" * 5000}}}}}', ProblemKind.NUMBER_TOO_LARGE, "too large"),
        ('{"tool": "a", "arguments": {"x": 18446744073709551617}}', ProblemKind.NUMBER_TOO_LARGE, "in quotes"),
        (f'{{"tool": "a", "arguments": {{"x": {"[" * 100_000}', ProblemKind.TOO_DEEP, "64 levels"),
        (f'{{"tool": "a", "arguments": {{"x": {"[" * 70}{"]" * 70}}}}}', ProblemKind.TOO_DEEP, "64 levels"),
        ('{"tool": "a", "arguments": [1]}', ProblemKind.BAD_ARGUMENTS, "not a JSON object"),
        ('{"tool": 3, "arguments": {}}', ProblemKind.MISSING_NAME, "name a tool"),
        ('{"arguments": {"x": 1}}', ProblemKind.MISSING_NAME, "name a tool"),
        ('{"tool": "a", "arguments": {}} ' * 70, ProblemKind.TOO_MANY_CALLS, "64 calls"),
        ('{"a": 1}' * 300, ProblemKind.TOO_MANY_CALLS, "256 JSON objects"),
    ],
)
def test_json_problems_are_named_and_told(text, expected, part):
    action = JSONActionParser().parse(text)
    assert kind(action) == expected
    assert action.problem is not None
    assert part in action.problem.sentence
    assert action.problem.sentence.endswith('write {"tool": ..., "arguments": {...}}.')


def test_a_good_call_beside_a_bad_one_is_kept():
    action = JSONActionParser().parse('{"tool": "a", "arguments": {"x": }} {"tool": "b", "arguments": {}}')
    assert calls(action) == [("b", {})]
    assert kind(action) == ProblemKind.INVALID_JSON


def test_values_that_json_can_hold_come_through():
    values = {"big": 2**64 - 1, "small": -(2**63), "wide": 1e300, "text": "\x00<|im_end|>", "deep": [[[[{"a": None}]]]]}
    text = (
        '{"tool": "a", "arguments": {"big": 18446744073709551615, "small": -9223372036854775808, "wide": 1e300, '
        '"text": "\\u0000<|im_end|>", "deep": [[[[{"a": null}]]]]}}'
    )
    assert calls(JSONActionParser().parse(text)) == [("a", values)]
    assert calls(JSONActionParser().parse('{"tool": "a", "arguments": {"x": 1, "x": 2}}')) == [("a", {"x": 2})]


def test_depth_and_long_numbers_are_seen_among_many_values():
    rows = ", ".join(['{"id": 7, "text": "[{"}'] * 3000)
    assert len(JSONActionParser().parse(f'{{"tool": "a", "arguments": {{"rows": [{rows}]}}}}').calls) == 1
    deep = f'{{"tool": "a", "arguments": {{"rows": [{rows}, {"[" * 80}{"]" * 80}]}}}}'
    assert kind(JSONActionParser().parse(deep)) == ProblemKind.TOO_DEEP
    long = f'{{"tool": "a", "arguments": {{"rows": [{rows}, {"9" * 30}]}}}}'
    assert kind(JSONActionParser().parse(long)) == ProblemKind.NUMBER_TOO_LARGE
    quoted = f'{{"tool": "a", "arguments": {{"rows": [{rows}, "{"9" * 30}"]}}}}'
    assert len(JSONActionParser().parse(quoted).calls) == 1


def test_a_list_with_one_impossible_call_is_refused_as_a_whole():
    action = JSONActionParser().parse(
        '[{"tool": "a", "arguments": {}}, {"tool": "b", "arguments": {"x": 99999999999999999999}}]'
    )
    assert (action.calls, kind(action)) == ([], ProblemKind.NUMBER_TOO_LARGE)


# ---- tags and OpenAI


def test_tags_several_and_the_last_not_closed():
    text = (
        'A <tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call> B\n'
        '<tool_call>{"name": "b", "arguments": {"s": "</tool_call>"}}</tool_call>'
        '<tool_call>{"name": "c"}</tool_call><tool_call>{"name": "d", "arguments": {}}'
    )
    action = FunctionCallingParser().parse(text)
    assert calls(action) == [("a", {"x": 1}), ("b", {"s": "</tool_call>"}), ("c", {}), ("d", {})]
    assert (action.text, action.problem) == ("A\nB", None)


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


@pytest.mark.parametrize("parser", [JSONActionParser(), ReActActionParser(), FunctionCallingParser()])
def test_a_call_in_the_thinking_is_a_draft(parser):
    call = '<tool_call>{"name": "a", "arguments": {}}</tool_call>\nAction: a\nAction Input: {}\n'
    assert parser.parse(f"<think>perhaps {call}</think>\n\nNo.") == ParsedAction("No.")
    assert parser.parse(f"perhaps {call}</think>No.") == ParsedAction("No.")
    assert kind(parser.parse(f"\n<think>perhaps {call}")) == ProblemKind.UNFINISHED


# ---- ReAct


def test_react_several_actions_over_several_lines():
    action = ReActActionParser().parse(
        'Thought: two things.\nAction: a\nAction Input: {\n  "x": 1\n}\n'
        "Thought: and\nAction: b\nAction Input: two\nlines\n"
    )
    assert calls(action) == [("a", {"x": 1}), ("b", {"input": "two\nlines"})]
    assert action.text == "two things.\nThought: and"
    assert action.problem is None


@pytest.mark.parametrize(
    "text",
    [
        'Thought: hm Action: a Action Input: {"x": 1}',
        '**Thought:** hm\n**Action:** `a`\n**Action Input:** {"x": 1}',
        'Action: a\nAction Input: ```json\n{"x": 1}\n```',
        'Action: a\r\nAction Input: {"x": 1}\r\n',
        'Action:\n```json\n{"action": "a", "action_input": {"x": 1}}\n```',
        'Action: {"name": "a", "arguments": {"x": 1}}',
        'Action: a\nAction Input: {"x": 1}\nObservation:',
    ],
)
def test_react_is_read_however_it_is_dressed(text):
    action = ReActActionParser().parse(text)
    assert calls(action) == [("a", {"x": 1})]
    assert action.problem is None


def test_react_final_answer_is_the_text():
    assert ReActActionParser().parse("Thought: I know.\nFinal Answer: 42 is it\nreally") == ParsedAction(
        "42 is it\nreally"
    )
    action = ReActActionParser().parse("Action: look\nFinal Answer: done")
    assert (calls(action), action.text) == ([("look", {})], "done")


def test_react_what_the_model_invents_is_not_read():
    action = ReActActionParser().parse("Action: a\nAction Input: {}\nObservation: 5\nAction: b\nAction Input: {}")
    assert calls(action) == [("a", {})]
    assert kind(action) == ProblemKind.INVENTED_OBSERVATION


def test_react_a_word_in_a_sentence_is_no_label():
    text = "My next Action: is good, and the Final Answer: no Observation: yet"
    assert ReActActionParser().parse(text) == ParsedAction(text)


def test_react_problems_name_the_action():
    action = ReActActionParser().parse('Action: a\nAction Input: {"x": }\nmore')
    assert (kind(action), action.text) == (ProblemKind.INVALID_JSON, "more")
    assert "The input of the action `a` is not valid JSON" in str(action.problem)
    assert kind(ReActActionParser().parse("Action:\n")) == ProblemKind.MISSING_NAME
    assert kind(ReActActionParser().parse("Action: a\n" * 300)) == ProblemKind.TOO_MANY_CALLS


# ---- all


@pytest.mark.parametrize("parser", [JSONActionParser, ReActActionParser, FunctionCallingParser, PlainTextParser])
def test_a_text_that_is_too_long_is_not_read(parser):
    assert kind(parser(max_chars=10).parse("x" * 11)) == ProblemKind.TOO_LARGE
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


def test_plain_text_is_left_as_it_is():
    text = ' <think>{"tool": "a", "arguments": {}}\nAction: b '
    assert PlainTextParser().parse(text) == ParsedAction(text)
    assert PlainTextParser().instructions([SEARCH]) == ""
