"""Build tool calls from JSON values, in all spellings that models use for a tool's name and its arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from turnsmith.tools.definition import ToolCall
from turnsmith.tools.parsing.base import MAX_CALLS, PLAIN_INPUT, FormatProblem, ParsedAction, ProblemKind
from turnsmith.tools.parsing.json_text import MAX_DEPTH, JSONDecodeError, argument_problem, describe_error, loads

if TYPE_CHECKING:
    from turnsmith.tools.definition import ToolDefinition

__all__ = ["ActionBuilder", "tool_schemas"]

NAME_KEYS = ("name", "tool", "action", "tool_name", "function")
ARGUMENT_KEYS = ("arguments", "args", "parameters", "action_input", "input")
PLAIN_KEYS = ("action_input", "input")
"""Argument keys under which a string that is not JSON is accepted as it is."""
_NO_CALL = (("", ""), ("name", ""), ("", "input"))
"""Pairs of name key and argument key that JSON may have without being a call."""
MAX_NAME = 128
"""Characters of a tool's name or of a call's id."""
NAME_DISTANCE = 512
"""Characters of a broken call in which its keys are looked for."""
FINAL_ANSWER = "final answer"

_NAME = re.compile(rf'"(?:{"|".join(NAME_KEYS)})"\s{{0,8}}:\s{{0,8}}"([^"\\\n]{{1,64}})"')
_UNPRINTABLE = re.compile(r"[`\x00-\x1f\x7f]")


class ActionBuilder:
    """Collects the calls, the first problem and the remaining text of one completion.

    Args:
        text: The whole completion.
        start: Where the answer starts, after the reasoning.
        format_hint: How a call is written in this format; ends the sentence of every problem.
    """

    def __init__(self, text: str, start: int, format_hint: str) -> None:
        self.text = text
        self.position = start
        """Where the text begins that is neither in `pieces` nor cut out."""
        self.format_hint = format_hint
        self.calls: list[ToolCall] = []
        self.pieces: list[str] = []
        self.problem: FormatProblem | None = None
        self.final_answer: str | None = None
        """Replaces `pieces` where the model marked its answer as final."""

    def cut_out(self, start: int, stop: int) -> None:
        """Leave this part of the text, a call, out of the remaining text."""
        piece = self.text[self.position : start].strip()
        if piece and piece not in ",;":
            self.pieces.append(piece)
        self.position = stop

    def build(self) -> ParsedAction:
        """The result; its text is the text around the calls, or the final answer where one was given."""
        self.cut_out(len(self.text), len(self.text))
        text = "\n".join(self.pieces) if self.final_answer is None else self.final_answer
        return ParsedAction(text, self.calls, self.problem)

    def report(self, kind: ProblemKind, sentence: str) -> None:
        """Record a problem; only the first one is kept, and shown to the model."""
        if self.problem is None:
            self.problem = FormatProblem(kind, f"{sentence}: {self.format_hint}.")

    def report_too_many(self, what: str) -> None:
        """Record that the rest of the text was not read."""
        self.report(ProblemKind.TOO_MANY_CALLS, f"There are more than {what} in one answer; the rest was not read")

    def add_calls(self, value: Any, source: str) -> bool:
        """Add the calls in a JSON value that was parsed from `source`.

        Returns:
            Whether the value was meant as calls, valid or not, and is not some other JSON.
        """
        if type(value) is dict:
            listed = value.get("tool_calls")
            if type(listed) is list:
                return self.add_calls(listed, source) or bool(listed)
            value = [value]
        if type(value) is not list:
            return False
        before, is_call = len(self.calls), False
        for item in value:
            if type(item) is dict and self._add_call(item):
                is_call = True
        self._check_arguments(before, source)
        return is_call

    def _check_arguments(self, before: int, source: str) -> None:
        """Drop the calls from index `before` on if the arguments of one of them exceed a limit."""
        calls = self.calls[before:]
        problem = argument_problem([call.arguments for call in calls], source)
        if problem is None:
            return
        del self.calls[before:]
        what = (
            "The arguments of the calls" if len(calls) > 1 else f"The arguments of the call to `{show(calls[0].name)}`"
        )
        if problem is ProblemKind.TOO_DEEP:
            self.report(problem, f"{what} are nested more than {MAX_DEPTH} levels deep")
        else:
            self.report(problem, f"{what} contain an integer that is too large (write it in quotes)")

    def _add_call(self, value: dict[str, Any]) -> bool:
        """Add the call in an object; returns whether the object was meant as a call."""
        inner = value.get("function_call", value.get("function"))
        if type(inner) is dict:
            value = {"id": value.get("id"), **inner}
        name_key, arguments_key = _first_key(value, NAME_KEYS), _first_key(value, ARGUMENT_KEYS)
        if (name_key, arguments_key) in _NO_CALL:
            return False
        name = value[name_key] if name_key else None
        arguments = value[arguments_key] if arguments_key else None
        if len(self.calls) >= MAX_CALLS:
            self.report_too_many(f"{MAX_CALLS} calls")
        elif type(name) is not str or not name.strip() or len(name) > MAX_NAME:
            detail = ", or the name is not a short string" if name_key else ""
            self.report(ProblemKind.MISSING_NAME, f"The call does not name a tool{detail}")
        elif not arguments_key and len(value) > 1 + ("id" in value):
            self.report(ProblemKind.BAD_ARGUMENTS, f"The call to `{show(name.strip())}` has no arguments")
        else:
            self._add(name.strip(), arguments, value.get("id"), is_plain=arguments_key in PLAIN_KEYS)
        return True

    def _add(self, name: str, arguments: Any, call_id: Any, *, is_plain: bool) -> None:
        if type(arguments) is str:
            if name.lower() == FINAL_ANSWER:
                self.final_answer = arguments
                return
            try:
                arguments = _parse_arguments(arguments, is_plain=is_plain)
            except JSONDecodeError as error:
                self.report(*describe_error(error, f"The text of the arguments of the call to `{show(name)}`"))
                return
        if arguments is None:
            arguments = {}
        if type(arguments) is dict:
            self.calls.append(ToolCall(name, arguments, call_id[:MAX_NAME] if type(call_id) is str else ""))
        else:
            sentence = f"The arguments of the call to `{show(name)}` are not a JSON object"
            self.report(ProblemKind.BAD_ARGUMENTS, sentence)


def _first_key(value: dict[str, Any], keys: Sequence[str]) -> str:
    for key in keys:
        if key in value:
            return key
    return ""


def _parse_arguments(text: str, *, is_plain: bool) -> Any:
    """Parse arguments that are given as a string; with `is_plain` it need not be JSON."""
    try:
        arguments = loads(text) if text.strip() else {}
    except JSONDecodeError:
        if not is_plain or text.lstrip().startswith("{"):
            raise
        arguments = text
    return {PLAIN_INPUT: text} if is_plain and type(arguments) is not dict else arguments


def call_subject(text: str, start: int, stop: int) -> str:
    """The subject of a sentence about a broken call, with the tool's name if it can be found."""
    match = _NAME.search(text, start, min(stop, start + NAME_DISTANCE))
    return f"The call to `{show(match[1])}`" if match else "The call"


def show(name: str) -> str:
    """A name in a form that is safe between back-quotes in a sentence."""
    return _UNPRINTABLE.sub("", name[:64])


def tool_schemas(definitions: Sequence[ToolDefinition]) -> str:
    """The schemas of the tools, one JSON object per line, as models know them from their training."""
    import orjson

    return "\n".join(orjson.dumps(definition.as_openai()["function"]).decode() for definition in definitions)
