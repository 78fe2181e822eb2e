"""Nothing a model says can break a parser. The long run is `python -m tests.fuzz.run_long`."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fuzz.hostile import PARSERS, PIECES, VALID, check, hostile

from turnsmith.tools.parsing import ActionParser

texts = st.lists(st.sampled_from([*PIECES, *VALID]) | st.text(st.characters(codec=None), max_size=8), max_size=16)
every_parser = pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: type(parser).__name__)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(texts.map("".join))
def test_no_text_raises(text: str):
    for parser in PARSERS:
        check(parser.parse(text))


def test_hostile_texts_do_not_raise():
    rng = random.Random(7)
    for _ in range(3000):
        text = hostile(rng)
        for parser in PARSERS:
            check(parser.parse(text))


MEGABYTE = 1_000_000
LONG = {
    "braces": "{" * MEGABYTE,
    "keys": '{"' * (MEGABYTE // 2),
    "lists": '[{"a":' * (MEGABYTE // 6),
    "half calls": '{"tool": "a", "arguments": {]' * (MEGABYTE // 29),
    "empty objects": '{"a":1}' * (MEGABYTE // 7),
    "tags": "<tool_call>" * (MEGABYTE // 11),
    "tags and an end": "</tool_call>" + "<tool_call>" * (MEGABYTE // 11) + "</tool_call>",
    "tags and braces": '<tool_call>{"name": "' * (MEGABYTE // 21),
    "tags and wide letters": "<tool_call>{漢" * (MEGABYTE // 13),
    "empty tags": "<tool_call></tool_call>" * (MEGABYTE // 23),
    "actions": "Action:" * (MEGABYTE // 7),
    "action lines": "Action: a\nAction Input: {\n" * (MEGABYTE // 26),
    "plain actions": "Action: a\nAction Input: b\n" * (MEGABYTE // 26),
    "observations": "x Observation: " * (MEGABYTE // 15),
    "digits": '{"tool": "a", "arguments": {"n": ' + "1" * MEGABYTE + "}}",
    "deep": '{"tool": "a", "arguments": {"n": ' + "[" * 100_000 + "]" * 100_000 + "}}",
    "one string": '<tool_call>{"name": "' + "a" * MEGABYTE,
    "spaces": "{ " * (MEGABYTE // 2),
    "fences": "```json\n" * (MEGABYTE // 8),
    "backslashes": '{"tool": "' + "\\" * (MEGABYTE - 10),
    "half characters": "\ud800" * MEGABYTE,
    "many calls": '[{"tool": "a", "arguments": {"x": [1.5]}}'
    + ', {"tool": "a", "arguments": {"x": [1.5]}}' * 20_000
    + "]",
}


@every_parser
@pytest.mark.parametrize("kind", LONG)
def test_a_megabyte_of_it_takes_no_time(parser: ActionParser, kind: str):
    # Ten times what the slowest of them takes; work that grows with the square of the length would take minutes.
    began = time.process_time()
    check(parser.parse(LONG[kind]))
    assert time.process_time() - began < 3.0
