"""`inference.tool_format` names a parser: one of ours, or the user's own as `module:name`."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from transformers import AutoTokenizer

from turnsmith import ToolCall
from turnsmith.config import ConfigStore, ToolFormat
from turnsmith.config_sources import apply_overrides
from turnsmith.errors import ConfigError
from turnsmith.tools.parsing import ActionParser, JSONActionParser, ParsedAction
from turnsmith.tools.parsing.formats import parser_for
from turnsmith.trainer.config.check import check
from turnsmith.trainer.resume import extensions_in

HERE = "tests.unit.tools.test_formats"


class Plain(ActionParser):
    def parse(self, text: str) -> ParsedAction:
        return ParsedAction(text)

    def instructions(self, definitions: Any) -> str:
        return ""


class WithTokenizer(Plain):
    def __init__(self, *, tokenizer: Any) -> None:
        super().__init__()
        self.tokenizer = tokenizer


class Unfinished(ActionParser):
    def parse(self, text: str) -> ParsedAction:
        return ParsedAction(text)


class NotAParser:
    def __init__(self) -> None:
        raise AssertionError("it must not be called")


short = JSONActionParser(max_chars=5)


@pytest.mark.parametrize("name", get_args(ToolFormat))
def test_every_format_has_a_parser(name: str, tiny_folder: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder) if name == "native" else None
    assert parser_for(name, tokenizer).is_native == (name == "native")


def test_a_class_of_the_users_own_gets_the_tokenizer_if_it_takes_one() -> None:
    assert type(parser_for(f"{HERE}:Plain", "a tokenizer")) is Plain
    parser = parser_for(f"{HERE}:WithTokenizer", "a tokenizer")
    assert isinstance(parser, WithTokenizer)
    assert parser.tokenizer == "a tokenizer"


def test_an_instance_of_the_users_own_is_used_as_it_is() -> None:
    assert parser_for(f"{HERE}:short", "a tokenizer") is short


@pytest.mark.parametrize("name", ["NotAParser", "Unfinished", "HERE", "test_every_format_has_a_parser"])
def test_anything_else_is_refused_before_a_run_starts(name: str) -> None:
    config = apply_overrides(ConfigStore(), [f"inference.tool_format={HERE}:{name}"])
    with pytest.raises(ConfigError, match=rf"inference.tool_format='{HERE}:{name}' is not a parser: name a subclass"):
        check(config)
    with pytest.raises(ConfigError, match="is not a parser"):
        parser_for(config.inference.tool_format)


def test_a_parser_of_the_users_own_is_code_that_a_run_folder_names() -> None:
    config = apply_overrides(ConfigStore(), [f"inference.tool_format={HERE}:Plain"])
    check(config)
    assert extensions_in(config) == {"inference.tool_format": [f"{HERE}:Plain"]}


@pytest.mark.parametrize("name", ["function_calling", "json", "react", "native"])
@pytest.mark.parametrize(
    "arguments", [{}, {"at": "sky"}, {"code": 'if a < 1:\n    "</tool_call>"', "deep": [{"é": None}, 1.5]}]
)
def test_a_parser_reads_what_it_writes(name: str, arguments: dict[str, Any], tiny_folder: str) -> None:
    parser = parser_for(name, AutoTokenizer.from_pretrained(tiny_folder))
    action = parser.parse(parser.write(ToolCall("look", arguments)))
    assert [(call.name, call.arguments) for call in action.calls] == [("look", arguments)]
    assert (action.text, action.problem) == ("", None)


def test_a_parser_that_cannot_write_says_what_it_lacks() -> None:
    with pytest.raises(NotImplementedError, match=r"Plain cannot write the call to `look` .* `write\(call\)`"):
        Plain().write(ToolCall("look", {}))
