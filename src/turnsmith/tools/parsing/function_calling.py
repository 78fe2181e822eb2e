"""`<tool_call>` tags and OpenAI's `tool_calls`: the formats that most tool-calling models are trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnsmith.tools.parsing import base
from turnsmith.tools.parsing.base import ParsedAction, ProblemKind, TextParser
from turnsmith.tools.parsing.calls import Turn, called, schemas, usual_call
from turnsmith.tools.parsing.json_action import scan_objects
from turnsmith.tools.parsing.json_text import JSONDecodeError, loads, read_on

if TYPE_CHECKING:
    from turnsmith.tools.definition import ToolDefinition

__all__ = ["FunctionCallingParser"]

OPEN, CLOSE = "<tool_call>", "</tool_call>"
SHAPE = 'write <tool_call>{"name": ..., "arguments": {...}}</tool_call>'
_LONG = 4096


class FunctionCallingParser(TextParser):
    """Reads `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, and JSON as OpenAI-like servers write it.

    Any number of tags; the last may lack its end. In a text without tags it reads `{"tool_calls": [...]}`,
    `{"function_call": {...}}` and bare `{"name": ..., "arguments": {...}}`; arguments may be an object or a text with
    JSON in it. What stands in the model's thinking (before `</think>`) is not read.

    Example:
        >>> said = 'Let me see. <tool_call>{"name": "search", "arguments": {"query": "rain"}}</tool_call>'
        >>> action = FunctionCallingParser().parse(said)
        >>> action.text, action.calls[0].name, action.calls[0].arguments
        ('Let me see.', 'search', {'query': 'rain'})
        >>> FunctionCallingParser().parse('<tool_call>{"name": "search" "arguments": {}}</tool_call>').problem.sentence
        'The call to `search` is not valid JSON (a comma or a closing bracket is missing near character 19,
        at `"arguments": {}}`): write <tool_call>{"name": ..., "arguments": {...}}</tool_call>.'
    """

    def _read_answer(self, text: str, start: int) -> ParsedAction:
        turn = Turn(text, start, SHAPE)
        opened = base.find_tag(text, OPEN, start)
        if opened < 0:
            scan_objects(turn, start)
        else:
            _read_tags(turn, opened)
        return turn.finish()

    def instructions(self, definitions: Sequence[ToolDefinition]) -> str:
        """Teaches the tags, in the words that models such as Qwen and Hermes were trained on.

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
            f"<tools>\n{schemas(definitions)}\n</tools>\n"
            "For each function call, return a json object with function name and arguments within "
            "<tool_call></tool_call> XML tags:\n"
            '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
        )


def _read_tags(turn: Turn, opened: int) -> None:
    text = turn.text
    closed = -1
    # A close tag may stand in a string of the call, so reading may go on past it, over text that is read again if
    # that was wrong. This bounds how much of that is done.
    spare = 2 * len(text)
    for _ in range(base.MAX_ATTEMPTS):
        start = opened + len(OPEN)
        if closed < start:
            closed = _seek(text, CLOSE, start)
        stop = closed if closed - start < _LONG else min(closed, _seek(text, OPEN, start))
        try:
            value, end = loads(text[start:stop]), stop
        except JSONDecodeError as error:
            stop = min(stop, _seek(text, OPEN, start))
            found = read_on(text, start, stop, len(text) if spare > 0 else stop, error)
            spare -= max(0, found.end - stop)
            value, end = found.value, found.end
            if found.error is not None:
                turn.complain_json(error, called(text, start, stop))
                end = stop
            if closed < end:
                closed = _seek(text, CLOSE, end)
        call = usual_call(value, text, start, end) if type(value) is dict else None
        if call is not None and len(turn.calls) < base.MAX_CALLS:
            turn.calls.append(call)
        elif value is not None:
            _take(turn, value, start, end)
        following = _seek(text, OPEN, end)
        turn.cut(opened, closed + len(CLOSE) if closed < following else end)
        if following == len(text):
            return
        opened = following
    turn.too_many(f"{base.MAX_ATTEMPTS} calls")


def _take(turn: Turn, value: object, start: int, end: int) -> None:
    if type(value) is dict and len(value) == 1 and "name" in value:
        value["arguments"] = {}  # between tags this is a call without arguments, and not some other JSON
    if not turn.take(value, start, end):
        turn.complain(ProblemKind.MISSING_NAME, "The call does not name a tool and its arguments")


def _seek(text: str, tag: str, start: int) -> int:
    """Where the next tag is; the end of the text if there is none."""
    found = text.find(tag, start) if len(text) - start < _LONG else base.find_tag(text, tag, start)
    return len(text) if found < 0 else found
