"""The parser of calls that are JSON objects, anywhere in the text."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnsmith.tools.parsing.base import MAX_ATTEMPTS, ParsedAction, TextParser
from turnsmith.tools.parsing.calls import (
    ARGUMENT_KEYS,
    NAME_DISTANCE,
    NAME_KEYS,
    ActionBuilder,
    call_subject,
    tool_schemas,
)
from turnsmith.tools.parsing.json_text import WINDOW, JSONReading, describe_error, read_json

if TYPE_CHECKING:
    from turnsmith.tools.definition import ToolCall, ToolDefinition

__all__ = ["JSONActionParser", "scan_objects"]

FORMAT_HINT = 'write {"tool": ..., "arguments": {...}}'
_KEYS = "|".join((*NAME_KEYS, *ARGUMENT_KEYS, "tool_calls", "function_call"))
# The start of an object or of a list of objects; the first key is quoted, or is a key of ours with wrong or no quotes.
_OPENER = re.compile(rf"(?:\[\s{{0,64}}+\{{|\{{)\s{{0,64}}+(?:\"|['“]?(?:{_KEYS})\b)")
_CALL_KEY = re.compile(rf"[\"'“{{,\s](?:{_KEYS})[\"'”]?\s{{0,8}}:")
_NEAR = 64
"""Characters before and after a call in which the marks of a fenced block are looked for."""


class JSONActionParser(TextParser):
    """Parses `{"tool": ..., "arguments": {...}}` anywhere in the text or in a fenced block; several, or a list of them.

    The name may also be under `action` or `name`, the arguments under `args`, `parameters`, `action_input` or `input`.
    Other JSON is left in the text. The reasoning (before `</think>`) is skipped.

    Example:
        >>> action = JSONActionParser().parse('I look it up. {"tool": "search", "arguments": {"query": "rain"}}')
        >>> action.text, action.calls[0].name, action.calls[0].arguments
        ('I look it up.', 'search', {'query': 'rain'})
        >>> JSONActionParser().parse('{"tool": "search", "arguments": {"query": "rain"').problem.sentence
        'The call to `search` ends too early (a bracket or a quote is not closed): write {"tool": ..., "arguments":
        {...}}.'
    """

    def _parse_answer(self, text: str, start: int) -> ParsedAction:
        builder = ActionBuilder(text, start, FORMAT_HINT)
        scan_objects(builder, start)
        return builder.build()

    def write(self, call: ToolCall) -> str:
        """The call as one object.

        Example:
            >>> from turnsmith import ToolCall
            >>> JSONActionParser().write(ToolCall("look", {"at": "sky"}))
            '{"tool": "look", "arguments": {"at": "sky"}}'
        """
        return json.dumps({"tool": call.name, "arguments": call.arguments})

    def instructions(self, definitions: Sequence[ToolDefinition]) -> str:
        """Lists the tools and shows the format.

        Example:
            >>> from turnsmith.tools.definition import ToolDefinition
            >>> print(JSONActionParser().instructions([ToolDefinition("look", "Look around.")]))
            You can use these tools:
            {"name":"look","description":"Look around.","parameters":{"type":"object","properties":{}}}
            To use one, write one JSON object: {"tool": <name>, "arguments": {<argument>: <value>, ...}}
            To use several, write a list of such objects. Without such an object your words are your answer.
        """
        if not definitions:
            return ""
        return (
            f"You can use these tools:\n{tool_schemas(definitions)}\n"
            'To use one, write one JSON object: {"tool": <name>, "arguments": {<argument>: <value>, ...}}\n'
            "To use several, write a list of such objects. Without such an object your words are your answer."
        )


def scan_objects(builder: ActionBuilder, start: int) -> None:
    """Find every JSON object in the text from `start` on, and add those that are calls.

    After a value or an error it goes on where the JSON parser stopped, so no text is read more than a few times.
    """
    text = builder.text
    window = len(text)
    for _ in range(MAX_ATTEMPTS):
        match = _OPENER.search(text, start)
        if match is None:
            return
        begin = match.start()
        reading = _read_value(text, begin, window)
        if reading.error is not None and text[begin] == "[":  # not a list after all: the object alone
            begin = text.index("{", begin)
            reading = _read_value(text, begin, window)
        window = WINDOW  # the first value mostly ends with the last bracket; for others such a guess would cost time
        start = reading.end
        if reading.error is None:
            if builder.add_calls(reading.value, text[begin:start]):
                builder.cut_out(*_with_fence(text, begin, start, builder.position))
        elif _CALL_KEY.search(text, begin, begin + NAME_DISTANCE):
            builder.report(*describe_error(reading.error, call_subject(text, begin, len(text))))
    if _OPENER.search(text, start):
        builder.report_too_many(f"{MAX_ATTEMPTS} JSON objects")


def _read_value(text: str, start: int, window: int) -> JSONReading:
    """Read the list or object at `start`, which ends with the last closing bracket at the latest."""
    limit = text.rfind("]" if text[start] == "[" else "}", start) + 1 or len(text)
    return read_json(text, start, start + window, limit)


def _with_fence(text: str, start: int, stop: int, position: int) -> tuple[int, int]:
    """The span of a call, with the marks of the fenced block around it if the block holds nothing else."""
    after = text[stop : stop + _NEAR]
    if not after.lstrip().startswith("```"):
        return start, stop
    left = max(position, start - _NEAR)
    before = text[left:start].rstrip()
    opening = before.rfind("```")
    if opening < 0 or "\n" in before[opening:]:
        return start, stop
    return left + opening, stop + after.index("```") + 3
