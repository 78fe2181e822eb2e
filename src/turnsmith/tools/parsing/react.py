"""The parser of the ReAct format (Yao et al. 2022): lines labelled Thought, Action and Action Input."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnsmith.tools.parsing.base import MAX_ATTEMPTS, ParsedAction, ProblemKind, TextParser
from turnsmith.tools.parsing.calls import MAX_NAME, ActionBuilder, call_subject, show, tool_schemas
from turnsmith.tools.parsing.json_text import describe_error, read_json

if TYPE_CHECKING:
    from turnsmith.tools.definition import ToolCall, ToolDefinition

__all__ = ["ReActActionParser"]

ACTION, INPUT, FINAL = "Action:", "Action Input:", "Final Answer:"
SHORT_INPUT = "Input:"
THOUGHT, OBSERVATION = "Thought:", "Observation:"
FORMAT_HINT = "write a line `Action: <tool>` and a line `Action Input: {...}` with one JSON object"
_MARKUP = " \t*#>-`"
"""Labels may be bold, quoted or in a list."""
_NEAR = 24
"""Characters before a label or after an action in which markup is looked for."""


class ReActActionParser(TextParser):
    """Parses `Action: name` and `Action Input: {...}`, any number of times, and `Final Answer: ...`.

    A label counts at the start of a line; `Input:` is one too. An input that is not a JSON object becomes the argument
    `input`, as plain text. Text after an `Observation:` that the model wrote itself is ignored, because the model
    invented it. The reasoning (before `</think>`) is skipped.

    Example:
        >>> completion = 'Thought: I look it up.\\nAction: search\\nAction Input: {"query": "rain"}'
        >>> action = ReActActionParser().parse(completion)
        >>> action.text, action.calls[0].name, action.calls[0].arguments
        ('I look it up.', 'search', {'query': 'rain'})
        >>> ReActActionParser().parse("Thought: I know.\\nFinal Answer: 42").text
        '42'
    """

    def _parse_answer(self, text: str, start: int) -> ParsedAction:
        builder = ActionBuilder(text, start, FORMAT_HINT)
        _read_actions(builder, start)
        action = builder.build()
        if action.text.startswith(THOUGHT):
            action.text = action.text[len(THOUGHT) :].lstrip()
        return action

    def write(self, call: ToolCall) -> str:
        """The call as two lines.

        Example:
            >>> from turnsmith import ToolCall
            >>> print(ReActActionParser().write(ToolCall("look", {"at": "sky"})))
            Action: look
            Action Input: {"at": "sky"}
        """
        return f"{ACTION} {call.name}\n{INPUT} {json.dumps(call.arguments)}"

    def instructions(self, definitions: Sequence[ToolDefinition]) -> str:
        """Lists the tools and shows the format.

        Example:
            >>> from turnsmith.tools.definition import ToolDefinition
            >>> print(ReActActionParser().instructions([ToolDefinition("look", "Look around.")]))
            You can use these tools:
            {"name":"look","description":"Look around.","parameters":{"type":"object","properties":{}}}
            Use this format:
            Thought: <what you think>
            Action: <name of one tool>
            Action Input: <its arguments as one JSON object on one line>
            Then stop: you are told the observation. When you know the answer, write:
            Final Answer: <your answer>
        """
        if not definitions:
            return ""
        return (
            f"You can use these tools:\n{tool_schemas(definitions)}\nUse this format:\n"
            f"{THOUGHT} <what you think>\n{ACTION} <name of one tool>\n"
            f"{INPUT} <its arguments as one JSON object on one line>\n"
            "Then stop: you are told the observation. When you know the answer, write:\n"
            f"{FINAL} <your answer>"
        )


def _read_actions(builder: ActionBuilder, position: int) -> None:
    text = builder.text
    for _ in range(MAX_ATTEMPTS):
        label = text.find(ACTION, position)
        if _ends_turn(builder, position, len(text) if label < 0 else label) or label < 0:
            return
        position = label + len(ACTION)
        if _starts_line(text, label) or _input_follows(text, position):  # else it is part of a sentence
            position = _read_action(builder, label, position)
    builder.report_too_many(f"{MAX_ATTEMPTS} actions")


def _read_action(builder: ActionBuilder, start: int, position: int) -> int:
    """Read the action whose label is at `start` and ends at `position`; returns where the action ends."""
    text = builder.text
    while start > builder.position and text[start - 1] in "*#>-`":
        start -= 1
    line_end = _line_end(text, position)
    label, label_end = _find_input(text, position, line_end + 1 + _NEAR + len(INPUT))
    name = text[position : line_end if label < 0 or label > line_end else label].strip(" \t\r*`\"'[]")
    if name.startswith("{") or not name:
        opened = _skip_fence(text, position)
        if text.startswith("{", opened):
            return _read_json(builder, start, opened)
    if not name or len(name) > MAX_NAME:
        builder.report(ProblemKind.MISSING_NAME, "The action does not name a tool, or the name is too long")
        builder.cut_out(start, line_end)
        return line_end
    if label < 0 or (label > line_end and text[line_end:label].strip(_MARKUP + "\r\n")):
        builder.add_calls({"name": name, "arguments": {}}, "")
        builder.cut_out(start, line_end)
        return line_end
    opened = _skip_fence(text, label_end)
    if text.startswith("{", opened):
        return _read_json(builder, start, opened, name)
    return _read_plain(builder, start, opened, name)


def _find_input(text: str, position: int, stop: int) -> tuple[int, int]:
    """Where the label of the input begins and ends, `Input:` at the start of a line too; -1 if there is none."""
    label = text.find(INPUT, position, stop)
    if label >= 0:
        return label, label + len(INPUT)
    label = text.find(SHORT_INPUT, position, stop)
    return (label, label + len(SHORT_INPUT)) if label >= 0 and _starts_line(text, label) else (-1, -1)


def _read_json(builder: ActionBuilder, start: int, opened: int, name: str = "") -> int:
    """Read the JSON object at `opened`: the arguments of the tool `name`, or without a name the whole call."""
    text = builder.text
    reading = read_json(text, opened, _line_end(text, opened), len(text))
    end = reading.end
    if reading.error is not None:
        what = f"The input of the action `{show(name)}`" if name else call_subject(text, opened, end)
        builder.report(*describe_error(reading.error, what))
        end = _line_end(text, end)
    elif not builder.add_calls({"name": name, "arguments": reading.value} if name else reading.value, text[opened:end]):
        builder.report(ProblemKind.MISSING_NAME, "The action does not name a tool")
    return _cut_out(builder, start, end)


def _read_plain(builder: ActionBuilder, start: int, position: int, name: str) -> int:
    """Read an input that is not a JSON object: all text up to the next label."""
    text = builder.text
    stop = len(text)
    # The next action first: it is near, and bounds the search for the others.
    for label in (ACTION, THOUGHT, OBSERVATION, FINAL):
        following = text.find("\n" + label, position - 1, stop)
        stop = stop if following < 0 else following
    words = text[position:stop].strip().removesuffix("```").rstrip()
    if len(words) > 1 and words[0] == words[-1] and words[0] in "\"'":
        words = words[1:-1]
    builder.add_calls({"name": name, "input": words}, words)
    builder.cut_out(start, stop)
    return stop


def _cut_out(builder: ActionBuilder, start: int, stop: int) -> int:
    """Cut an action out of the text, with the closing mark of a fenced block; returns where it ends."""
    after = builder.text[stop : stop + _NEAR]
    if after.lstrip().startswith("```"):
        stop += after.index("```") + 3
    builder.cut_out(start, stop)
    return stop


def _line_end(text: str, position: int) -> int:
    end = text.find("\n", position)
    return len(text) if end < 0 else end


def _ends_turn(builder: ActionBuilder, start: int, stop: int) -> bool:
    """Whether the turn ends before the next action: with a final answer, or with an invented observation."""
    text = builder.text
    invented = _find_label(text, OBSERVATION, start, stop)
    answer = _find_label(text, FINAL, start, stop if invented < 0 else invented)
    if answer >= 0:
        final_answer = text[answer + len(FINAL) : len(text) if invented < 0 else invented]
        builder.final_answer = final_answer.strip(_MARKUP + "\r\n")
    elif invented >= 0:
        if text[invented + len(OBSERVATION) :].strip():
            sentence = "You wrote an observation yourself; it was ignored. Stop after the action and wait for it"
            builder.report(ProblemKind.INVENTED_OBSERVATION, sentence)
        builder.cut_out(invented, len(text))
    return answer >= 0 or invented >= 0


def _find_label(text: str, label: str, start: int, stop: int) -> int:
    """The first such label at the start of a line, or -1; gives up in a text that is full of others."""
    for _ in range(MAX_ATTEMPTS):
        place = text.find(label, start, stop)
        if place < 0 or _starts_line(text, place):
            return place
        start = place + len(label)
    return -1


def _starts_line(text: str, place: int) -> bool:
    line = text[max(0, place - _NEAR) : place].rpartition("\n")[2]
    return not line.strip(_MARKUP) and (place <= _NEAR or len(line) < _NEAR)


def _input_follows(text: str, position: int) -> bool:
    """Whether the label of the input is near, on the same line."""
    label = text.find(INPUT, position, position + MAX_NAME + len(INPUT))
    return label >= 0 and "\n" not in text[position:label]


def _skip_fence(text: str, position: int) -> int:
    """The first position after white space and the opening mark of a fenced block."""
    window = text[position : position + _NEAR]
    rest = window.lstrip(" \t\r\n*")
    start = position + len(window) - len(rest)
    if rest.startswith("```"):
        line_end = text.find("\n", start, start + _NEAR)
        start = start + 3 if line_end < 0 else line_end + 1
    return start
