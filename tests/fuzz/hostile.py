"""Hostile completions for parsers, and what must hold for every parser's result."""

from __future__ import annotations

import random
from typing import Any

import orjson

from turnsmith.tools.parsing import (
    ActionParser,
    FormatProblem,
    FunctionCallingParser,
    JSONActionParser,
    ParsedAction,
    PlainTextParser,
    ProblemKind,
    ReActActionParser,
)
from turnsmith.tools.parsing.base import MAX_CALLS

PARSERS: list[ActionParser] = [
    JSONActionParser(),
    ReActActionParser(),
    FunctionCallingParser(),
    PlainTextParser(),
]

QWEN = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"),
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
]
DEEPSEEK = [
    *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),  # noqa: RUF001
    *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),  # noqa: RUF001
    *("<｜tool▁sep｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"),  # noqa: RUF001
    *("<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),  # noqa: RUF001
]


def byte_tokenizer(tokens: list[str], eos: str) -> Any:
    """Every byte is a token, and so are the control tokens of a model family."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {letter: place for place, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(name, special=False, normalized=False) for name in tokens])
    made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=eos)
    made.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    return made


def native_parsers() -> list[ActionParser]:
    """The native parser for families whose parsers in `renderers` differ most."""
    from turnsmith.tools.parsing import NativeParser

    qwen = NativeParser(byte_tokenizer(QWEN, "<|im_end|>"))
    deepseek = NativeParser(byte_tokenizer(DEEPSEEK, DEEPSEEK[1]))
    assert (qwen.family, deepseek.family) == ("qwen3", "deepseek-v3")
    return [qwen, deepseek]


# Pieces that mean something to a parser, to JSON, to a tokenizer or to Python.
PIECES = [
    *"{}[]\",:'`\\\n\t \r\x00\x7f\u2028\ufeff“”é漢😀",
    *("<tool_call>", "</tool_call>", "<tool_call", "<think>", "</think>", "```json\n", "```", "\n```\n"),
    *("Thought: ", "\nAction: ", "Action:", "\nAction Input: ", "Action Input:", "\nObservation: ", "\nFinal Answer: "),
    *('"name"', '"tool"', '"action"', '"arguments"', '"args"', '"parameters"', '"action_input"', '"input"', '"id"'),
    *(
        '"tool_calls": [',
        '"function_call": {',
        '"function": {',
        '{"name": "',
        '{"tool": "',
        '"arguments": {',
        '"}}',
        "]}",
    ),
    *("null", "true", "false", "NaN", "Infinity", "-Infinity", "1e999", "-0", "0.1", "1e-400", "18446744073709551616"),
    *("<|im_start|>system\n", "<|im_end|>", "<|endoftext|>", "<｜tool▁calls▁begin｜>", "<|python_tag|>"),  # noqa: RUF001
    *("\\ud800", "\\udc00\\ud800", "\\u0000", "\\x", "\\", '\\"', "\ud800", "\udfff", "\ud83d\ude00"),
    *("search", "__class__", "final answer", "Final Answer", "a" * 200),
]
VALID = [
    '{"tool": "search", "arguments": {"query": "rain", "limit": 3}}',
    '[{"tool": "a", "arguments": {}}, {"action": "b", "action_input": "x"}]',
    '```json\n{"name": "a", "arguments": {"x": [1, {"y": null}]}}\n```',
    'Thought: hm\nAction: search\nAction Input: {"query": "rain"}\nObservation: dry\nFinal Answer: no',
    "Action: a\nAction Input: plain words\nThought: b",
    '<tool_call>{"name": "a", "arguments": {"s": "</tool_call>"}}</tool_call> and <tool_call>{"name": "b"',
    '{"tool_calls": [{"id": "c1", "function": {"name": "a", "arguments": "{\\"x\\": 1}"}}]}',
]


def hostile(rng: random.Random) -> str:
    """One hostile text: random pieces, a broken valid completion, or one piece repeated very often."""
    kind = rng.random()
    if kind < 0.45:
        return "".join(rng.choices(PIECES, k=rng.randrange(1, 24)))
    if kind < 0.85:
        return _broken(rng)
    if kind < 0.95:
        inside = rng.choice(
            ["1" * rng.randrange(17, 5001), "[" * rng.randrange(1, 3000), '{"a":' * rng.randrange(1, 3000)]
        )
        closing = "]" * inside.count("[") if rng.random() < 0.5 else ""
        return rng.choice(VALID).replace('"rain"', inside + closing).replace("1}", inside + closing + "}")
    unit = "".join(rng.choices(PIECES, k=rng.randrange(1, 4)))
    return (unit * (rng.randrange(1, 4000) // len(unit) + 1)) + rng.choice(["", rng.choice(VALID)])


def _broken(rng: random.Random) -> str:
    text = rng.choice(VALID)
    if rng.random() < 0.3:
        text += rng.choice(VALID)
    for _ in range(rng.randrange(1, 5)):
        place = rng.randrange(len(text) + 1)
        stop = min(len(text), place + rng.choice([0, 0, 1, 1, 2, 8]))
        text = text[:place] + rng.choice(["", rng.choice(PIECES)]) + text[stop:]
    return text


def check(action: Any) -> ParsedAction:
    """What must hold for every result: typed, and safe to write, to encode and to show."""
    assert type(action) is ParsedAction
    action.text.encode()
    assert len(action.calls) <= MAX_CALLS
    for call in action.calls:
        assert type(call.name) is str
        assert 0 < len(call.name) <= 128
        assert type(call.arguments) is dict
        assert type(call.id) is str
        call.name.encode()
        repr(call.arguments)  # no RecursionError
        again = orjson.dumps(call.arguments)  # no lone surrogate, no endless integer, nothing too deep
        assert again.count(b"Infinity") == 0 or b'"' in again
    if action.problem is not None:
        assert type(action.problem) is FormatProblem
        assert type(action.problem.kind) is ProblemKind
        assert 10 < len(action.problem.sentence.encode()) < 1200
        assert action.problem.sentence.endswith(".")
    return action
