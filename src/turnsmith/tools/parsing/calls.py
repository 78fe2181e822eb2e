"""From JSON values to calls: the spellings that models use for a tool's name and its arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from turnsmith.tools.definition import ToolCall
from turnsmith.tools.parsing.base import MAX_CALLS, PLAIN_INPUT, FormatProblem, ParsedAction, ProblemKind
from turnsmith.tools.parsing.json_text import MAX_DEPTH, JSONDecodeError, describe, loads, value_problem

if TYPE_CHECKING:
    from turnsmith.tools.definition import ToolDefinition

__all__ = ["Turn", "schemas"]

NAME_KEYS = ("name", "tool", "action", "tool_name", "function")
ARGUMENT_KEYS = ("arguments", "args", "parameters", "action_input", "input")
MAX_NAME = 128
FINAL = "final answer"
_LONG = 4096

PLAIN = frozenset({str, int, bool, type(None)})
"""Types of arguments that need no look inside."""
_NAME = re.compile(r'"(?:name|tool|action|tool_name|function)"\s{0,8}:\s{0,8}"([^"\\\n]{1,64})"')
_TIDY = re.compile(r"[`\x00-\x1f\x7f]")


class Turn:
    """What was found so far in one turn of the model.

    Args:
        text: The whole text of the turn.
        start: Where the answer starts (after the thinking).
        shape: How a call is written in this format; ends the sentence of every problem.
    """

    # Not in __init__, which runs for every turn of every episode.
    problem: FormatProblem | None = None
    answer: str | None = None
    trusted = False

    def __init__(self, text: str, start: int, shape: str) -> None:
        self.text = text
        self.done = start
        self.shape = shape
        self.calls: list[ToolCall] = []
        self.pieces: list[str] = []

    def cut(self, start: int, stop: int) -> None:
        """Leave this part, a call, out of the model's words."""
        if start > self.done:
            piece = self.text[self.done : start].strip()
            if piece and piece not in ",;":
                self.pieces.append(piece)
        self.done = stop

    def finish(self) -> ParsedAction:
        """The turn as read; the words are the pieces around the calls, or the final answer where one was given."""
        if self.answer is not None:
            return ParsedAction(self.answer, self.calls, self.problem)
        end = len(self.text)
        if self.done < end:
            self.cut(end, end)
        pieces = self.pieces
        words = "" if not pieces else pieces[0] if len(pieces) == 1 else "\n".join(pieces)
        return ParsedAction(words, self.calls, self.problem)

    def complain(self, kind: ProblemKind, sentence: str) -> None:
        """Note what is wrong; the first problem of a turn is the one it is told about."""
        if self.problem is None:
            self.problem = FormatProblem(kind, f"{sentence}: {self.shape}.")

    def complain_json(self, error: JSONDecodeError, what: str) -> None:
        """Note that the JSON of a call cannot be read."""
        self.complain(*describe(error, what))

    def too_many(self, what: str) -> None:
        """Note that the rest of the text was not read."""
        self.complain(ProblemKind.TOO_MANY_CALLS, f"There are more than {what} in one answer; the rest was not read")

    def take(self, value: Any, start: int, stop: int) -> bool:
        """Add the calls in a JSON value that was read from this part of the text.

        Returns:
            Whether it was meant as calls (good ones or bad ones), and not some other JSON.
        """
        if type(value) is dict:
            if len(self.calls) < MAX_CALLS:
                call = usual_call(value, self.text, start, stop)
                if call is not None:
                    self.calls.append(call)
                    return True
            listed = value.get("tool_calls")
            if type(listed) is not list:
                return self._take_object(value, start, stop)
            return self._take_list(listed, start, stop) or bool(listed)
        return type(value) is list and self._take_list(value, start, stop)

    def _take_list(self, values: list[Any], start: int, stop: int) -> bool:
        """Several calls. Their values are checked together, or the same text would be looked at for each of them."""
        calls = self.calls
        before, meant = len(calls), False
        # Many calls in a short text: the check costs less than finding out that it is not needed.
        plain = stop - start > _LONG or len(values) < 5
        self.trusted = True
        for value in values[: MAX_CALLS + 1]:
            if type(value) is not dict:
                continue
            name, arguments = value.get("name") or value.get("tool"), value.get("arguments")
            if (
                type(name) is str
                and type(arguments) is dict
                and 0 < len(name) <= MAX_NAME
                and name == name.strip()
                and len(calls) < MAX_CALLS
            ):
                calls.append(ToolCall(name, arguments, _id(value) if len(value) > 2 else ""))
                meant = True
            else:
                meant = self._take_object(value, start, stop) or meant
                arguments = calls[-1].arguments if len(calls) > before else {}
            if plain:
                plain = PLAIN.issuperset(map(type, arguments.values()))
        self.trusted = False
        problem = None if plain else value_problem(values, self.text, start, stop)
        if problem is not None:
            del calls[before:]
            self._complain_value(problem, "The arguments of the calls")
        return meant

    def _take_object(self, value: dict[str, Any], start: int, stop: int) -> bool:
        inner = value.get("function_call", value.get("function"))
        if type(inner) is dict:
            if "id" in value and "id" not in inner:
                inner["id"] = value["id"]
            value = inner
        return self._take_call(value, start, stop)

    def _take_call(self, value: dict[str, Any], start: int, stop: int) -> bool:
        name_key = next((key for key in NAME_KEYS if key in value), None)
        arguments_key = next((key for key in ARGUMENT_KEYS if key in value), None)
        if name_key is None or (arguments_key is None and name_key == "name"):
            if arguments_key is None or arguments_key == "input":
                return False
            self.complain(ProblemKind.MISSING_NAME, "The call does not name a tool")
            return True
        if len(self.calls) >= MAX_CALLS:
            self.too_many(f"{MAX_CALLS} calls")
            return True
        name = value[name_key]
        if type(name) is not str or not name.strip() or len(name) > MAX_NAME:
            self.complain(ProblemKind.MISSING_NAME, "The call does not name a tool, or not with a short text")
            return True
        name = name.strip()
        arguments = None if arguments_key is None else value[arguments_key]
        if arguments_key is None and len(value) > 1 + ("id" in value):
            self.complain(ProblemKind.BAD_ARGUMENTS, f"The call to `{show(name)}` has no arguments")
            return True
        if name.lower() == FINAL and type(arguments) is str:
            self.answer = arguments
            return True
        if type(arguments) is str:
            return self.take_text(name, arguments, value, plain=arguments_key in ("action_input", "input"))
        return self._checked(name, {} if arguments is None else arguments, value, start, stop)

    def take_text(self, name: str, text: str, value: dict[str, Any], *, plain: bool) -> bool:
        """Add a call whose arguments are a text: JSON, or with `plain` anything at all."""
        try:
            arguments = loads(text) if text.strip() else {}
        except JSONDecodeError as error:
            if not plain or text.lstrip().startswith("{"):
                self.complain_json(error, f"The text of the arguments of the call to `{show(name)}`")
                return True
            arguments = text
        if plain and type(arguments) is not dict:
            arguments = {PLAIN_INPUT: text}
        if arguments is None:
            arguments = {}
        return self._checked(name, arguments, value, 0, len(text), text)

    def _checked(
        self, name: str, arguments: Any, value: dict[str, Any], start: int, stop: int, text: str | None = None
    ) -> bool:
        if type(arguments) is not dict:
            sentence = f"The arguments of the call to `{show(name)}` are not a JSON object"
            self.complain(ProblemKind.BAD_ARGUMENTS, sentence)
            return True
        problem = None
        if text is not None or not self.trusted:
            problem = value_problem(arguments, self.text if text is None else text, start, stop)
        if problem is not None:
            self._complain_value(problem, f"The arguments of the call to `{show(name)}`")
        elif len(self.calls) >= MAX_CALLS:
            self.too_many(f"{MAX_CALLS} calls")
        else:
            self.calls.append(ToolCall(name, arguments, _id(value)))
        return True

    def _complain_value(self, problem: ProblemKind, what: str) -> None:
        if problem is ProblemKind.TOO_DEEP:
            self.complain(problem, f"{what} are nested more than {MAX_DEPTH} levels deep")
        else:
            self.complain(problem, f"{what} hold a whole number that is too large (write it in quotes)")


def usual_call(value: dict[str, Any], text: str, start: int, stop: int) -> ToolCall | None:
    """The call in an object of the usual spelling, quickly; None if it needs a closer look."""
    name, arguments = value.get("name") or value.get("tool"), value.get("arguments")
    if (
        type(name) is str
        and type(arguments) is dict
        and 0 < len(name) <= MAX_NAME
        and name == name.strip()
        and (PLAIN.issuperset(map(type, arguments.values())) or value_problem(arguments, text, start, stop) is None)
    ):
        return ToolCall(name, arguments, _id(value) if len(value) > 2 else "")
    return None


def called(text: str, start: int, stop: int) -> str:
    """What to call a broken call in a sentence: by its tool, if it can be made out."""
    found = _NAME.search(text, start, min(stop, start + 512))
    return f"The call to `{show(found[1])}`" if found else "The call"


def show(name: str) -> str:
    """A name as it may stand between back-quotes in a sentence."""
    return _TIDY.sub("", name[:64])


def schemas(definitions: Sequence[ToolDefinition]) -> str:
    """The tools, one JSON object a line, as models know them from their training."""
    import orjson

    return "\n".join(orjson.dumps(definition.as_openai()["function"]).decode() for definition in definitions)


def _id(value: dict[str, Any]) -> str:
    found = value.get("id")
    return found[:MAX_NAME] if type(found) is str else ""
