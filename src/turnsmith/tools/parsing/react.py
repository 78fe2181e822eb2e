"""Thought, action, action input: the ReAct format (Yao et al. 2022), as plain labelled lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnsmith.tools.definition import ToolCall
from turnsmith.tools.parsing import base
from turnsmith.tools.parsing.base import ParsedAction, ProblemKind, TextParser
from turnsmith.tools.parsing.calls import FINAL, MAX_NAME, PLAIN, Turn, called, schemas, show
from turnsmith.tools.parsing.json_text import JSONDecodeError, Reading, loads, read_on, value_problem

if TYPE_CHECKING:
    from turnsmith.tools.definition import ToolDefinition

__all__ = ["ReActActionParser"]

ACTION, INPUT, ANSWER = "Action:", "Action Input:", "Final Answer:"
THOUGHT, OBSERVATION = "Thought:", "Observation:"
SHAPE = "write a line `Action: <tool>` and a line `Action Input: {...}` with one JSON object"
# Bold, quoted and listed labels are read too.
_MARKUP = " \t*#>-`"
_LINE = 24
_USUAL = re.compile(r"Action:[ \t]{0,4}+([\w.-]{1,64}+)[ \t]{0,4}+\nAction Input:[ \t]{0,4}+(?=\{)")


class ReActActionParser(TextParser):
    """Reads `Action: name` and `Action Input: {...}`, any number of times, and `Final Answer: ...`.

    A label counts at the start of a line. An input that is not a JSON object is plain text, under the argument
    `input`. What follows an `Observation:` of the model's own making is not read: it is invented. What stands in the
    model's thinking (before `</think>`) is not read either.

    Example:
        >>> said = 'Thought: I look it up.\\nAction: search\\nAction Input: {"query": "rain"}'
        >>> action = ReActActionParser().parse(said)
        >>> action.text, action.calls[0].name, action.calls[0].arguments
        ('I look it up.', 'search', {'query': 'rain'})
        >>> ReActActionParser().parse("Thought: I know.\\nFinal Answer: 42").text
        '42'
    """

    def _read_answer(self, text: str, start: int) -> ParsedAction:
        usual = _usual(text, start)
        if usual is not None:
            return usual
        turn = Turn(text, start, SHAPE)
        _read(turn, start)
        action = turn.finish()
        if action.text.startswith(THOUGHT):
            action.text = action.text[len(THOUGHT) :].lstrip()
        return action

    def instructions(self, definitions: Sequence[ToolDefinition]) -> str:
        """Teaches the format.

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
            f"You can use these tools:\n{schemas(definitions)}\nUse this format:\n"
            f"{THOUGHT} <what you think>\n{ACTION} <name of one tool>\n"
            f"{INPUT} <its arguments as one JSON object on one line>\n"
            "Then stop: you are told the observation. When you know the answer, write:\n"
            f"{ANSWER} <your answer>"
        )


def _usual(text: str, start: int) -> ParsedAction | None:
    """The usual turn, quickly: a thought and one action that ends it. None if it is anything else."""
    place = text.find(ACTION, start)
    found = _USUAL.match(text, place) if place > 0 and text[place - 1] == "\n" else None
    if found is None or text.find(OBSERVATION, start, place) >= 0 or text.find(ANSWER, start, place) >= 0:
        return None
    try:
        value = loads(text[found.end() :])
    except JSONDecodeError:
        return None
    if not PLAIN.issuperset(map(type, value.values())) and value_problem(value, text, found.end(), len(text)):
        return None
    words = text[start:place].strip()
    return ParsedAction(
        words[len(THOUGHT) :].lstrip() if words.startswith(THOUGHT) else words, [ToolCall(found[1], value)]
    )


def _read(turn: Turn, position: int) -> None:
    text = turn.text
    for _ in range(base.MAX_ATTEMPTS):
        place = text.find(ACTION, position)
        before = len(text) if place < 0 else place
        ends = text.find(OBSERVATION, position, before) >= 0 or text.find(ANSWER, position, before) >= 0
        if ends and _ends(turn, position, before):
            return
        if place < 0:
            return
        if place == 0 or text[place - 1] == "\n":
            usual = _USUAL.match(text, place)
            if usual is not None:
                position = _read_arguments(turn, usual[1], place, usual.end())
                continue
        position = place + len(ACTION)
        # Else it is a word of a sentence.
        if _starts_line(text, place) or _input_follows(text, position):
            position = _read_action(turn, place, position)
    turn.too_many(f"{base.MAX_ATTEMPTS} actions")


def _read_action(turn: Turn, place: int, position: int) -> int:
    """Read the action whose label is at `place`; returns where it ends."""
    text = turn.text
    while place > turn.done and text[place - 1] in "*#>-`":
        place -= 1
    line_end = _line_end(text, position)
    label = text.find(INPUT, position, line_end + 1 + _LINE + len(INPUT))
    name = text[position : line_end if label < 0 or label > line_end else label].strip(" \t\r*`\"'[]")
    if name.startswith("{") or not name:
        start = _skip_fence(text, position)
        if text.startswith("{", start):
            return _read_object(turn, place, start)
    if not name or len(name) > MAX_NAME:
        turn.complain(ProblemKind.MISSING_NAME, "The action does not name a tool, or not with a short text")
        turn.cut(place, line_end)
        return line_end
    if label < 0 or (label > line_end and text[line_end:label].strip(_MARKUP + "\r\n")):
        turn.cut(place, line_end)
        turn.take({"name": name, "arguments": {}}, place, line_end)
        return line_end
    start = _skip_fence(text, label + len(INPUT))
    if text.startswith("{", start):
        return _read_arguments(turn, name, place, start)
    return _read_plain(turn, name, place, start)


def _read_object(turn: Turn, place: int, start: int) -> int:
    """A whole call as JSON after the label."""
    found = _json(turn.text, start)
    if found.error is not None:
        turn.complain_json(found.error, called(turn.text, start, found.end))
        found.end = _line_end(turn.text, found.end)
    elif not turn.take(found.value, start, found.end):
        turn.complain(ProblemKind.MISSING_NAME, "The action does not name a tool")
    return _cut(turn, place, found.end)


def _read_arguments(turn: Turn, name: str, place: int, start: int) -> int:
    text = turn.text
    stop = text.find("\n", start)
    stop = len(text) if stop < 0 else stop
    try:
        value = loads(text[start:stop])
    except JSONDecodeError as error:
        found = read_on(text, start, stop, len(text), error)
    else:
        if PLAIN.issuperset(map(type, value.values())) and len(turn.calls) < base.MAX_CALLS:
            turn.calls.append(ToolCall(name, value))
        else:
            turn.take({"name": name, "arguments": value}, start, stop)
        if text.startswith("\n```", stop):
            return _cut(turn, place, stop)
        turn.cut(place, stop)
        return stop
    if found.error is not None:
        turn.complain_json(found.error, f"The input of the action `{show(name)}`")
        found.end = _line_end(text, found.end)
    else:
        turn.take({"name": name, "arguments": found.value}, start, found.end)
    return _cut(turn, place, found.end)


def _read_plain(turn: Turn, name: str, place: int, start: int) -> int:
    """An input that is no JSON object: everything up to the next label."""
    text = turn.text
    stop = len(text)
    # The next action first: it is near, and bounds the search for the others.
    for label in (ACTION, THOUGHT, OBSERVATION, ANSWER):
        found = text.find("\n" + label, start - 1, stop)
        stop = stop if found < 0 else found
    said = text[start:stop].strip()
    if said.endswith("```"):
        said = said[:-3].rstrip()
    if len(said) > 1 and said[0] == said[-1] and said[0] in "\"'":
        said = said[1:-1]
    if name.lower() == FINAL:
        turn.answer = said
    else:
        turn.take_text(name, said, {}, plain=True)
    turn.cut(place, stop)
    return stop


def _json(text: str, start: int) -> Reading:
    # Mostly the input is one line. If it is not, its end is looked for.
    stop = _line_end(text, start)
    try:
        return Reading(loads(text[start:stop]), stop)
    except JSONDecodeError as error:
        return read_on(text, start, stop, len(text), error)


def _line_end(text: str, position: int) -> int:
    found = text.find("\n", position)
    return len(text) if found < 0 else found


def _cut(turn: Turn, place: int, stop: int) -> int:
    after = turn.text[stop : stop + _LINE]
    if after.lstrip().startswith("```"):
        stop += after.index("```") + 3
    turn.cut(place, stop)
    return stop


def _ends(turn: Turn, start: int, stop: int) -> bool:
    """Whether the turn ends before the next action: with a final answer, or with an observation the model made up."""
    text = turn.text
    invented = _find_label(text, OBSERVATION, start, stop)
    answer = _find_label(text, ANSWER, start, stop if invented < 0 else invented)
    if answer >= 0:
        said = text[answer + len(ANSWER) : len(text) if invented < 0 else invented]
        turn.answer = said.strip(_MARKUP + "\r\n")
        return True
    if invented >= 0:
        if text[invented + len(OBSERVATION) :].strip():
            sentence = "You wrote an observation yourself; it was ignored. Stop after the action and wait for it"
            turn.complain(ProblemKind.INVENTED_OBSERVATION, sentence)
        turn.cut(invented, len(text))
        return True
    return False


def _find_label(text: str, label: str, start: int, stop: int) -> int:
    """The first such label at the start of a line; a few looks, so that a text full of them costs nothing."""
    for _ in range(base.MAX_ATTEMPTS):
        place = text.find(label, start, stop)
        if place < 0 or _starts_line(text, place):
            return place
        start = place + len(label)
    return -1


def _starts_line(text: str, place: int) -> bool:
    line = text[max(0, place - _LINE) : place].rpartition("\n")[2]
    return not line.strip(_MARKUP) and (place <= _LINE or len(line) < _LINE)


def _input_follows(text: str, position: int) -> bool:
    """Whether the input's label stands on the same line, close by."""
    label = text.find(INPUT, position, position + MAX_NAME + len(INPUT))
    return label >= 0 and "\n" not in text[position:label]


def _skip_fence(text: str, position: int) -> int:
    """The first place after white space and the opening mark of a fenced block."""
    window = text[position : position + _LINE]
    rest = window.lstrip(" \t\r\n*")
    start = position + len(window) - len(rest)
    if rest.startswith("```"):
        line_end = text.find("\n", start, start + _LINE)
        start = start + 3 if line_end < 0 else line_end + 1
    return start
