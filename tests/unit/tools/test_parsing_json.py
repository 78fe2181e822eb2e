"""Calls as JSON objects, alone, in lists, in fenced blocks and in the middle of text."""

from __future__ import annotations

import pytest

from turnsmith.tools.parsing import JSONActionParser, ParsedAction, ProblemKind


def calls(action: ParsedAction) -> list[tuple]:
    return [(call.name, call.arguments) for call in action.calls]


def kind(action: ParsedAction) -> ProblemKind | None:
    return action.problem and action.problem.kind


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
        ('{"tool": "a", "arguments": {"x": 1e999}}', ProblemKind.NUMBER_TOO_LARGE, "too large near character 34"),
        (f'{{"tool": "a", "arguments": {{"x": {"1" * 5000}}}}}', ProblemKind.NUMBER_TOO_LARGE, "too large"),
        ('{"tool": "a", "arguments": {"x": 18446744073709551617}}', ProblemKind.NUMBER_TOO_LARGE, "in quotes"),
        (f'{{"tool": "a", "arguments": {{"x": {"[" * 100_000}', ProblemKind.TOO_DEEP, "64 levels"),
        (f'{{"tool": "a", "arguments": {{"x": {"[" * 70}{"]" * 70}}}}}', ProblemKind.TOO_DEEP, "64 levels"),
        ('{"tool": "a", "arguments": [1]}', ProblemKind.BAD_ARGUMENTS, "not a JSON object"),
        ('{"tool": 3, "arguments": {}}', ProblemKind.MISSING_NAME, "name a tool, or the name is not a short string"),
        ('{"arguments": {"x": 1}}', ProblemKind.MISSING_NAME, "name a tool:"),
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


def test_a_broken_call_is_named_if_its_name_is_near():
    def sentence(length):
        start, end = '{"x": "', '", "tool": "search"'
        broken = f"{start}{'p' * (length - len(start) - len(end))}{end} oops"
        return JSONActionParser().parse(broken).problem.sentence

    assert sentence(512).startswith("The call to `search` is not valid JSON")
    assert sentence(513).startswith("The call is not valid JSON")


def test_text_around_several_calls_is_kept_without_the_separators_between_them():
    call = '{"tool": "a", "arguments": {}}'
    action = JSONActionParser().parse(f"one {call}, {call}; {call} two {call} three;")
    assert (len(action.calls), action.text) == (4, "one\ntwo\nthree;")


def test_calls_after_a_list_and_broken_calls_after_a_good_one_are_seen():
    call = '{"tool": "a", "arguments": {}}'
    assert len(JSONActionParser().parse(f"[{call}] and {call}").calls) == 2
    action = JSONActionParser().parse(f'{call} {{"tool": "b", "arguments": ')
    assert (calls(action), kind(action)) == ([("a", {})], ProblemKind.UNFINISHED)


def test_a_list_that_is_broken_still_gives_its_first_calls():
    action = JSONActionParser().parse('[{"tool": "a", "arguments": {}}, {"tool": "b", "arguments": {}} and')
    assert calls(action) == [("a", {}), ("b", {})]


@pytest.mark.parametrize(("spaces", "count"), [(64, 1), (65, 0)])
def test_white_space_after_a_bracket_is_bounded(spaces, count):
    assert len(JSONActionParser().parse(f'{{{" " * spaces}"tool": "a", "arguments": {{}}}}').calls) == count


@pytest.mark.parametrize(
    ("before", "after", "left"),
    [
        ("```json\n", "\n```", ""),
        ("```", "```", ""),
        ("```", "```after", "after"),
        ("```json\n", "", "```json"),
        ("", "\n```", "```"),
        ("```json\nx = 1\n", "\n```", "```json\nx = 1\n```"),
        ("```\n", "\nx = 1\n```", "```\nx = 1\n```"),
        ("```" + " " * 61, "```", ""),
        ("```" + " " * 62, "```", "```\n```"),
        ("```", " " * 61 + "```", ""),
        ("```", " " * 62 + "```", "```\n```"),
    ],
)
def test_a_fence_is_removed_if_it_holds_only_the_call(before, after, left):
    action = JSONActionParser().parse(f'{before}{{"tool": "a", "arguments": {{}}}}{after}')
    assert (calls(action), action.text) == ([("a", {})], left)


def test_one_fence_is_not_removed_twice():
    call = '{"tool": "a", "arguments": {}}'
    action = JSONActionParser().parse(f"```{call}```{call}```")
    assert (len(action.calls), action.text) == (2, "```")


def test_json_keys_with_wrong_quotes_are_only_a_problem_if_they_are_keys_of_a_call():
    assert kind(JSONActionParser().parse("{'tool': 'a'}")) == ProblemKind.INVALID_JSON
    assert kind(JSONActionParser().parse("{“tool”: “a”}")) == ProblemKind.INVALID_JSON
    assert kind(JSONActionParser().parse("{'colour': 'red'}")) is None
    assert kind(JSONActionParser().parse('{"colour": }')) is None


def test_a_problem_quotes_24_characters_of_the_place():
    action = JSONActionParser().parse('{"tool": "a", "arguments": {"x": abcdefghijklmnopqrstuvwxyz}}')
    assert "at `abcdefghijklmnopqrstuvwx`)" in action.problem.sentence


def test_a_problem_shows_64_characters_of_a_name():
    action = JSONActionParser().parse(f'{{"tool": "{"n" * 100}", "arguments": 3}}')
    assert action.problem.sentence.startswith(f"The arguments of the call to `{'n' * 64}` are not a JSON object")


def test_a_number_that_is_too_large_is_told_with_the_call_or_for_all_calls():
    call = '{"tool": "a", "arguments": {"x": 99999999999999999999}}'
    assert "The arguments of the call to `a` contain an integer" in str(JSONActionParser().parse(call).problem)
    assert "The arguments of the calls contain an integer" in str(JSONActionParser().parse(f"[{call}, {call}]").problem)


def test_a_string_of_arguments_must_be_json_unless_it_is_plain_input():
    for arguments in ('"arguments": "rain"', '"action_input": "{rain"'):
        action = JSONActionParser().parse(f'{{"tool": "a", {arguments}}}')
        assert (action.calls, kind(action)) == ([], ProblemKind.INVALID_JSON)
    assert calls(JSONActionParser().parse('{"tool": "a", "input": "{\\"x\\": 1}"}')) == [("a", {"x": 1})]
    assert calls(JSONActionParser().parse('{"tool": "a", "input": "[1]"}')) == [("a", {"input": "[1]"})]


def test_a_call_with_an_id_and_no_arguments():
    action = JSONActionParser().parse('{"tool": "look", "id": "c1"}')
    assert ([(call.name, call.arguments, call.id) for call in action.calls], action.problem) == (
        [("look", {}, "c1")],
        None,
    )


def test_a_call_id_is_kept_and_bounded():
    def call_id(value):
        return JSONActionParser().parse(f'{{"tool": "a", "arguments": {{}}, "id": {value}}}').calls[0].id

    assert call_id('"c1"') == "c1"
    assert call_id("7") == ""
    assert call_id('"' + "x" * 200 + '"') == "x" * 128


def test_64_calls_are_read_and_the_65th_is_a_problem():
    call = '{"tool": "a", "arguments": {}}'
    for text in (call + f" {call}" * 63, "[" + call + f", {call}" * 63 + "]"):
        action = JSONActionParser().parse(text)
        assert (len(action.calls), action.problem) == (64, None)
    for text in (call + f" {call}" * 64, "[" + call + f", {call}" * 64 + "]"):
        action = JSONActionParser().parse(text)
        assert (len(action.calls), kind(action)) == (64, ProblemKind.TOO_MANY_CALLS)
        assert action.problem.sentence.startswith("There are more than 64 calls in one answer; the rest was not read")


@pytest.mark.parametrize(("depth", "count"), [(63, 1), (64, 0)])
def test_arguments_are_nested_at_most_64_levels_deep(depth, count):
    nested = "[" * depth + "]" * depth
    call = f'{{"tool": "a", "arguments": {{"x": {nested}}}}}'
    for text in (call, f"[{call}]", f"[{call}, {call}]"):
        action = JSONActionParser().parse(text)
        assert len(action.calls) == count * text.count("tool")
        assert kind(action) == (None if count else ProblemKind.TOO_DEEP)


@pytest.mark.parametrize(
    ("number", "is_good"),
    [
        ("18446744073709551615", True),
        ("18446744073709551616", False),
        ("-9223372036854775808", True),
        ("-9223372036854775809", False),
        ("123456789012345678901", False),
        ("1e19", True),
        ("-1e300", True),
        ("12345678901234567890.5", True),
        ("123456789012345678901e5", True),
        ("0.123456789012345678901", True),
    ],
)
def test_integers_over_64_bits_are_a_problem_and_floats_are_not(number, is_good):
    action = JSONActionParser().parse(f'{{"tool": "a", "arguments": {{"x": [{number}]}}}}')
    assert kind(action) == (None if is_good else ProblemKind.NUMBER_TOO_LARGE)
    assert len(action.calls) == is_good


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


def test_json_calls_beyond_the_limit_are_told_even_if_the_list_has_something_else_in_it():
    one = '{"tool": "a", "arguments": {}}'
    for others in (0, 1, 70):
        listed = ", ".join(["1"] * others + [one] * 65)
        action = JSONActionParser().parse(f"[{listed}]")
        assert (len(action.calls), kind(action)) == (64, ProblemKind.TOO_MANY_CALLS)


@pytest.mark.parametrize(("empty_lines", "text"), [(57, ""), (58, "```json\n```")])
def test_json_the_opening_mark_of_a_fence_is_near_its_call(empty_lines, text):
    newlines = "\n" * empty_lines
    action = JSONActionParser().parse(f'```json{newlines}{{"tool": "a", "arguments": {{}}}}\n```')
    assert (calls(action), action.text) == ([("a", {})], text)
