"""The native parser on the real parsers of `renderers`, with byte-level tokenizers that have a family's tokens."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("renderers")

from tests.fuzz.hostile import DEEPSEEK, QWEN, byte_tokenizer, check, hostile, native_parsers

from turnsmith.tools.definition import ToolDefinition
from turnsmith.tools.parsing import FunctionCallingParser, NativeParser, ProblemKind
from turnsmith.tools.parsing.native import MAX_CALLS


@pytest.fixture(scope="module")
def qwen() -> NativeParser:
    return NativeParser(byte_tokenizer(QWEN, "<|im_end|>"))


def test_the_family_is_told_by_its_tokens(qwen, tiny_folder):
    from transformers import AutoTokenizer

    assert (qwen.family, qwen.is_native) == ("qwen3", True)
    assert NativeParser(byte_tokenizer(DEEPSEEK, DEEPSEEK[1])).family == "deepseek-v3"
    assert NativeParser(AutoTokenizer.from_pretrained(tiny_folder)).family == ""


def test_a_token_that_the_tokenizer_only_knows_as_unknown_tells_no_family():
    tokenizer = byte_tokenizer(QWEN, "<|im_end|>")
    tokenizer.unk_token = "?"
    assert tokenizer.convert_tokens_to_ids("<arg_key>") == tokenizer.unk_token_id is not None
    assert NativeParser(tokenizer).family == "qwen3"


LLAMA = ["begin_of_text", "start_header_id", "end_header_id", "eot_id", "eom_id", "python_tag", "end_of_text"]


@pytest.mark.parametrize(
    ("written", "calls", "kind"),
    [
        ('{"name": "a", "parameters": {"x": 1}}', [("a", {"x": 1})], None),
        ('{"name": "a", "parameters": {}}; {"name": "b", "parameters": {}}', [("a", {}), ("b", {})], None),
        ('{"name": "a", "parameters": {"x": }}', [], ProblemKind.INVALID_JSON),
        ("Hello", [], None),
    ],
)
def test_llama_calls_are_bare_json_and_broken_ones_are_a_problem(written, calls, kind):
    parser = NativeParser(byte_tokenizer([f"<|{name}|>" for name in LLAMA], "<|eot_id|>"))
    assert parser.family == "llama-3"
    action = parser.parse(f"{written}<|eot_id|>")
    assert [(call.name, call.arguments) for call in action.calls] == calls
    assert (action.problem and action.problem.kind) == kind


def test_qwen_calls_from_ids_with_their_stop_token(qwen):
    tokenizer = byte_tokenizer(QWEN, "<|im_end|>")
    call = '<tool_call>\n{"name": "a", "arguments": {"x": [1]}}\n</tool_call>'
    ids = tokenizer.encode(
        f"<think>\nhm {call}\n</think>\n\nLet me. {call}\n{call}<|im_end|>", add_special_tokens=False
    )
    action = qwen.parse_ids(ids)
    assert [(one.name, one.arguments) for one in action.calls] == [("a", {"x": [1]})] * 2
    assert (action.text, action.problem) == ("Let me.", None)


@pytest.mark.parametrize("given", [[ToolDefinition("look", "Look around.")], []])
def test_the_family_is_given_the_tools_that_there_are(monkeypatch, given):
    parser, seen = NativeParser(byte_tokenizer(QWEN, "<|im_end|>"), given), []
    parse = parser._renderer.parse_response
    monkeypatch.setattr(parser._renderer, "parse_response", lambda ids, **how: seen.append(how) or parse(ids, **how))
    parser.parse("hello")
    assert [how["tools"] for how in seen] == [[one.as_openai() for one in given] or None]


def test_deepseek_calls():
    begin, end, one, done, sep = DEEPSEEK[4], DEEPSEEK[5], DEEPSEEK[6], DEEPSEEK[7], DEEPSEEK[8]
    parser = NativeParser(byte_tokenizer(DEEPSEEK, DEEPSEEK[1]))
    action = parser.parse(
        f'Well.{begin}{one}function{sep}search\n```json\n{{"query": "rain"}}\n```{done}{end}{DEEPSEEK[1]}'
    )
    assert [(call.name, call.arguments) for call in action.calls] == [("search", {"query": "rain"})]
    assert action.text == "Well."


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ('{"name": "a", "arguments": {"x": }}', ProblemKind.INVALID_JSON),
        ('{"name": "a", "arguments": {"x": ' + "1" * 5000 + "}}", ProblemKind.NUMBER_TOO_LARGE),
        ('{"name": "a", "arguments": {"x": ' + "1" * 500 + "}}", ProblemKind.BAD_ARGUMENTS),
        ('{"name": "a", "arguments": {"x": ' + "[" * 50_000 + "]" * 50_000 + "}}", ProblemKind.TOO_DEEP),
        ('{"name": "a", "arguments": {"x": ' + "[" * 100 + "]" * 100 + "}}", ProblemKind.TOO_DEEP),
        ('{"name": "a", "arguments": {"x": "\\ud800"}}', ProblemKind.BAD_ARGUMENTS),
        ('{"name": "a", "arguments": 5}', ProblemKind.BAD_ARGUMENTS),
        ('{"arguments": {}}', ProblemKind.MISSING_NAME),
        ('{"name": {"x": 1}, "arguments": {}}', ProblemKind.MISSING_NAME),
        ('{"name": "", "arguments": {}}', ProblemKind.MISSING_NAME),
    ],
)
def test_what_renderers_raises_on_or_lets_through_is_a_problem(qwen, body, kind):
    action = qwen.parse(f"<tool_call>{body}</tool_call>")
    assert action.calls == []
    assert action.problem is not None
    assert action.problem.kind == kind


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ('{"name": "a", "arguments": {"x": }}', "The call is not valid JSON"),
        ('{"name": "%s", "arguments": {}}' % ("n" * 200), f"The call to `{'n' * 64}` is broken"),
        ('{"arguments": {}}', "The call does not name a tool"),
        ('{"name": "", "arguments": {}}', "The call does not name a tool"),
    ],
)
def test_a_broken_call_is_told_what_is_wrong_with_it(qwen, body, sentence):
    action = qwen.parse(f"<tool_call>{body}</tool_call>")
    assert action.calls == []
    assert action.problem.sentence.startswith(f"{sentence}: write the call exactly in your own tool call format")


@pytest.mark.parametrize("family", ["", "default", "deepseek-v3", "no_such_family"])
def test_a_family_that_the_tokenizer_cannot_have_is_none(family, tiny_folder):
    from transformers import AutoTokenizer

    parser = NativeParser(AutoTokenizer.from_pretrained(tiny_folder), family=family)
    assert parser.family == ""
    assert len(parser.parse('<tool_call>{"name": "a", "arguments": {}}</tool_call>').calls) == 1


def test_nan_becomes_null(qwen):
    assert qwen.parse('<tool_call>{"name": "a", "arguments": {"x": NaN}}</tool_call>').calls[0].arguments == {"x": None}


def test_unfinished_turns_are_problems(qwen):
    assert qwen.parse('<tool_call>{"name": "a"').problem.kind == ProblemKind.UNFINISHED
    assert qwen.parse("<think>hm").problem.kind == ProblemKind.UNFINISHED


def test_without_a_parser_of_the_family_the_tags_are_read(tiny_folder):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    parser = NativeParser(tokenizer)
    text = 'Hi <tool_call>{"name": "a", "arguments": {}}</tool_call>'
    ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    assert parser.parse_ids(ids) == parser.parse(text) == FunctionCallingParser().parse(text)
    look = ToolDefinition("look", "Look around.")
    assert parser.instructions([look]) == FunctionCallingParser().instructions([look])


def test_where_renderers_raises_the_tags_are_read_and_no_problem_is_made_up(qwen):
    deep = "[" * 1000 + "]" * 1000  # orjson reads it, the standard library does not
    action = qwen.parse(f'<tool_call>{{"name": "a", "arguments": {{}}, "extra": {deep}}}</tool_call>')
    assert ([call.name for call in action.calls], action.problem) == (["a"], None)
    assert qwen.parse_ids([2**70]).problem.kind == ProblemKind.INVALID_JSON


def test_ids_that_do_not_exist_do_not_raise(qwen, tiny_folder):
    from transformers import AutoTokenizer

    for parser in (qwen, NativeParser(AutoTokenizer.from_pretrained(tiny_folder))):
        for ids in ([], [10**6], [-1], [2**70], [0] * 1000):
            check(parser.parse_ids(ids))


def test_hostile_texts_do_not_raise():
    rng = random.Random(3)
    parsers = native_parsers()
    for _ in range(150):
        text = hostile(rng)
        for parser in parsers:
            check(parser.parse(text))


def test_a_text_that_the_tokenizer_cannot_encode_is_read_by_its_tags(qwen, monkeypatch):
    def fail(*args, **settings):
        raise ValueError("not this text")

    monkeypatch.setattr(qwen._tokenizer, "encode", fail)
    action = qwen.parse('<tool_call>{"name": "a", "arguments": {}}</tool_call>')
    assert [call.name for call in action.calls] == ["a"]


def test_more_calls_than_allowed_are_a_problem(qwen):
    action = qwen.parse('<tool_call>{"name": "a", "arguments": {}}</tool_call>' * (MAX_CALLS + 1))
    assert len(action.calls) == MAX_CALLS
    assert action.problem is not None
    assert f"{MAX_CALLS} calls" in str(action.problem)


@pytest.mark.parametrize("tokens", [["<tool_call>", "</tool_call>"], ["<think>", "</think>"]])
def test_tags_of_calls_or_of_reasoning_alone_are_not_those_of_qwen(tokens):
    assert NativeParser(byte_tokenizer([*tokens, "<|im_end|>"], "<|im_end|>")).family == ""


@pytest.mark.parametrize("missing", ["<think>", "<tool_call>"])
def test_a_tokenizer_that_lacks_one_of_qwens_tokens_is_of_no_family(missing):
    tokens = [token for token in QWEN if token != missing]
    assert NativeParser(byte_tokenizer(tokens, "<|im_end|>")).family == ""


def test_a_text_is_read_without_the_tokens_that_a_tokenizer_puts_around_it(qwen, monkeypatch):
    asked = []
    encode = qwen._tokenizer.encode
    monkeypatch.setattr(qwen._tokenizer, "encode", lambda text, **how: asked.append(how) or encode(text, **how))
    qwen.parse("hello")
    assert asked[0] == {"add_special_tokens": False}


def test_more_tokens_than_allowed_are_not_read():
    parser = NativeParser(byte_tokenizer(QWEN, "<|im_end|>"), max_chars=10)
    assert parser.parse_ids([5] * 11).problem.kind == ProblemKind.TOO_LARGE
    assert parser.parse_ids([5] * 10).problem is None
