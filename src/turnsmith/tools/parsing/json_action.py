"""Calls as JSON objects, anywhere in the text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnsmith.tools.parsing import base
from turnsmith.tools.parsing.base import ParsedAction, TextParser
from turnsmith.tools.parsing.calls import ARGUMENT_KEYS, NAME_KEYS, Turn, called, schemas, usual_call
from turnsmith.tools.parsing.json_text import JSONDecodeError, first_window, loads, read_on

if TYPE_CHECKING:
    from turnsmith.tools.definition import ToolDefinition

__all__ = ["JSONActionParser", "scan_objects"]

SHAPE = 'write {"tool": ..., "arguments": {...}}'
_KEYS = "|".join((*NAME_KEYS, *ARGUMENT_KEYS, "tool_calls", "function_call"))
# Where an object may start: a quoted key, or a key of ours whose quotes are missing or wrong.
_OPENER = re.compile(rf"\{{\s{{0,64}}+(?:\"|['“]?(?:{_KEYS})\b)")
_MEANT = re.compile(rf"[\"'“{{,\s](?:{_KEYS})[\"'”]?\s{{0,8}}:")
_BEFORE = 64
_KEY_STARTS = ('"', "\n", " ")


class JSONActionParser(TextParser):
    """Reads `{"tool": ..., "arguments": {...}}` anywhere in the text or in a fenced block; several, or a list of them.

    The name may also be under `action` or `name`, the arguments under `args`, `parameters`, `action_input` or `input`.
    Other JSON is left in the text. What stands in the model's thinking (before `</think>`) is not read.

    Example:
        >>> action = JSONActionParser().parse('I look it up. {"tool": "search", "arguments": {"query": "rain"}}')
        >>> action.text, action.calls[0].name, action.calls[0].arguments
        ('I look it up.', 'search', {'query': 'rain'})
        >>> JSONActionParser().parse('{"tool": "search", "arguments": {"query": "rain"').problem.sentence
        'The call to `search` ends too early (a bracket or a quote is not closed): write {"tool": ..., "arguments":
        {...}}.'
    """

    def _read_answer(self, text: str, start: int) -> ParsedAction:
        usual = _usual(text, start)
        if usual is not None:
            return usual
        turn = Turn(text, start, SHAPE)
        scan_objects(turn, start)
        return turn.finish()

    def instructions(self, definitions: Sequence[ToolDefinition]) -> str:
        """Teaches the format.

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
            f"You can use these tools:\n{schemas(definitions)}\n"
            'To use one, write one JSON object: {"tool": <name>, "arguments": {<argument>: <value>, ...}}\n'
            "To use several, write a list of such objects. Without such an object your words are your answer."
        )


def _usual(text: str, start: int) -> ParsedAction | None:
    """The usual turn, quickly: some words and one call, or one list of calls. None if it is anything else."""
    opened, bracket = text.find("{", start), "}"
    if opened < 0 or text[opened + 1 : opened + 2] not in _KEY_STARTS or "`" in text[max(start, opened - 9) : opened]:
        return None
    if opened > start and text[opened - 1] == "[":
        opened, bracket = opened - 1, "]"
    stop = text.rfind(bracket) + 1
    try:
        value = loads(text[opened:stop])
    except JSONDecodeError:
        return None
    if type(value) is list and len(value) == 1:
        value = value[0]
    if type(value) is dict:
        call = usual_call(value, text, opened, stop)
        if call is None:
            return None
        calls, problem = [call], None
    else:
        turn = Turn(text, start, SHAPE)
        if not turn.take(value, opened, stop) or turn.answer is not None:
            return None
        calls, problem = turn.calls, turn.problem
    words, after = text[start:opened].strip(), text[stop:].strip() if stop < len(text) else ""
    return ParsedAction(f"{words}\n{after}" if words and after else words or after, calls, problem)


def scan_objects(turn: Turn, start: int) -> None:
    """Find every JSON object in the text from `start` on and take those that are calls.

    Reads on after what was read, also after a failure, so no part of the text is read more than a few times.
    """
    text = turn.text
    last = text.rfind("}") + 1
    limit = last or len(text)
    whole = True
    for _ in range(base.MAX_ATTEMPTS):
        found = _OPENER.search(text, start)
        if found is None:
            return
        opened = found.start()
        if last <= opened:
            limit = len(text)
        listed = _list_start(text, opened, turn.done)
        # Mostly there is one object and it ends with the last bracket. After that, guess small.
        begin, stop, bound = (
            (opened, limit if whole else first_window(opened, limit), limit)
            if listed < 0
            else (listed, text.rfind("]") + 1 if whole else first_window(listed, len(text)), len(text))
        )
        whole = False
        try:
            value, end = loads(text[begin:stop]), stop
        except JSONDecodeError as error:
            reading = read_on(text, begin, stop, bound, error)
            if reading.error is not None and listed >= 0:
                # Not a list after all: the object alone.
                begin = opened
                reading = read_on(text, begin, first_window(begin, limit), limit)
            value, end = reading.value, reading.end
            if reading.error is not None and _MEANT.search(text, begin, min(len(text), begin + 512)):
                turn.complain_json(reading.error, called(text, begin, len(text)))
        if value is not None and turn.take(value, begin, end):
            turn.cut(*_with_fence(text, begin, end, turn.done))
        start = end
    if _OPENER.search(text, start):
        turn.too_many(f"{base.MAX_ATTEMPTS} JSON objects")


def _list_start(text: str, opened: int, done: int) -> int:
    """Where the list starts whose first item the object at `opened` is; -1 if it stands alone."""
    before = text[max(done, opened - _BEFORE) : opened].rstrip()
    return max(done, opened - _BEFORE) + len(before) - 1 if before.endswith("[") else -1


def _with_fence(text: str, start: int, stop: int, done: int) -> tuple[int, int]:
    """The span of a call, with the marks of the fenced block around it if it has one to itself."""
    left = max(done, start - _BEFORE)
    before = text[left:start].rstrip()
    mark = before.rfind("```")
    after = text[stop : stop + _BEFORE]
    if mark >= 0 and "\n" not in before[mark:] and after.lstrip().startswith("```"):
        return left + mark, stop + after.index("```") + 3
    return start, stop
