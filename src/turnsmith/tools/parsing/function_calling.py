"""The parser of `<tool_call>` tags and OpenAI's `tool_calls`, which most tool-calling models are trained on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnsmith.tools.parsing.base import MAX_ATTEMPTS, ParsedAction, ProblemKind, TextParser
from turnsmith.tools.parsing.calls import ActionBuilder, call_subject, tool_schemas
from turnsmith.tools.parsing.json_action import scan_objects
from turnsmith.tools.parsing.json_text import describe_error, read_json

if TYPE_CHECKING:
    from turnsmith.tools.definition import ToolCall, ToolDefinition

__all__ = ["FunctionCallingParser"]

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FORMAT_HINT = 'write <tool_call>{"name": ..., "arguments": {...}}</tool_call>'


class FunctionCallingParser(TextParser):
    """Parses `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, and JSON as in OpenAI's API.

    There may be any number of tags; the last may lack its closing tag. In a text without tags it parses
    `{"tool_calls": [...]}`, `{"function_call": {...}}` and bare `{"name": ..., "arguments": {...}}`; the arguments may
    be an object or a string that contains JSON. The reasoning (before `</think>`) is skipped.

    Example:
        >>> completion = 'Let me see. <tool_call>{"name": "search", "arguments": {"query": "rain"}}</tool_call>'
        >>> action = FunctionCallingParser().parse(completion)
        >>> action.text, action.calls[0].name, action.calls[0].arguments
        ('Let me see.', 'search', {'query': 'rain'})
        >>> FunctionCallingParser().parse('<tool_call>{"name": "search" "arguments": {}}</tool_call>').problem.sentence
        'The call to `search` is not valid JSON (a comma or a closing bracket is missing near character 19,
        at `"arguments": {}}`): write <tool_call>{"name": ..., "arguments": {...}}</tool_call>.'
    """

    def _parse_answer(self, text: str, start: int) -> ParsedAction:
        builder = ActionBuilder(text, start, FORMAT_HINT)
        opened = text.find(OPEN, start)
        if opened < 0:
            scan_objects(builder, start)
        else:
            _read_tags(builder, opened)
        return builder.build()

    def write(self, call: ToolCall) -> str:
        """The call in its tags.

        Example:
            >>> from turnsmith import ToolCall
            >>> FunctionCallingParser().write(ToolCall("look", {"at": "sky"}))
            '<tool_call>{"name": "look", "arguments": {"at": "sky"}}</tool_call>'
        """
        return f"{OPEN}{json.dumps({'name': call.name, 'arguments': call.arguments})}{CLOSE}"

    def instructions(self, definitions: Sequence[ToolDefinition]) -> str:
        """Lists the tools in the words that models such as Qwen and Hermes were trained on.

        Example:
            >>> from turnsmith.tools.definition import ToolDefinition
            >>> "<tool_call>" in FunctionCallingParser().instructions([ToolDefinition("look", "Look around.")])
            True
        """
        if not definitions:
            return ""
        return (
            "You may call one or more functions to assist with the user query.\n"
            "You are provided with function signatures within <tools></tools> XML tags:\n"
            f"<tools>\n{tool_schemas(definitions)}\n</tools>\n"
            "For each function call, return a json object with function name and arguments within "
            "<tool_call></tool_call> XML tags:\n"
            '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
        )


def _read_tags(builder: ActionBuilder, opened: int) -> None:
    text = builder.text
    for _ in range(MAX_ATTEMPTS):
        start = opened + len(OPEN)
        following, closed = _next_tags(text, start)
        stop = following if closed < 0 else closed
        reading = read_json(text, start, stop, stop)
        if reading.error is not None:  # a tag may also stand in a string of the call
            beyond = read_json(text, start, stop, len(text))
            reading = reading._replace(end=stop) if beyond.error else beyond
        if reading.error is None:
            _add_call(builder, reading.value, text[start : reading.end])
        else:
            builder.report(*describe_error(reading.error, call_subject(text, start, stop)))
        if reading.end > stop:
            following, closed = _next_tags(text, reading.end)
        builder.cut_out(opened, reading.end if closed < 0 else closed + len(CLOSE))
        if following == len(text):
            return
        opened = following
    builder.report_too_many(f"{MAX_ATTEMPTS} calls")


def _next_tags(text: str, start: int) -> tuple[int, int]:
    """The next opening tag (or the end of the text), and the closing tag before it (or -1)."""
    following = text.find(OPEN, start)
    following = len(text) if following < 0 else following
    return following, text.find(CLOSE, start, following)


def _add_call(builder: ActionBuilder, value: object, source: str) -> None:
    if type(value) is dict and len(value) == 1 and "name" in value:
        value["arguments"] = {}  # between tags this is a call without arguments, and not some other JSON
    if not builder.add_calls(value, source):
        builder.report(ProblemKind.MISSING_NAME, "The call does not name a tool and its arguments")
