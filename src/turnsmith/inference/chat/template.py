"""Reads a chat template's fixed text off its renderings: what stands before, between and after the messages' texts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnsmith.errors import ConfigError

Message = Mapping[str, str]
ToolSchema = Mapping[str, Any]
"""A tool as OpenAI writes it: `{"type": "function", "function": {"name": ..., "parameters": ...}}`."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for a text in a scaffold, and what the template does to the text there."""

    trim_left: bool = False
    trim_right: bool = False
    quoted: bool = False
    """Written as inside a JSON string (Llama 3 writes tool results so)."""
    fixed: str | None = None
    """A text that is always the same, but is text all the same: it must not become a control token."""

    def fit(self, text: str) -> str:
        """The text as the template would write it."""
        if self.trim_left:
            text = text.lstrip()
        if self.trim_right:
            text = text.rstrip()
        return json.dumps(text, ensure_ascii=False)[1:-1] if self.quoted else text


@dataclass(frozen=True, slots=True)
class TemplatePieces:
    """The fixed text around the texts of some messages."""

    pieces: tuple[str, ...]
    """One more than there are slots."""
    slots: tuple[Slot, ...]


class ChatTemplate:
    """A tokenizer's chat template, and what it has a place for: system messages, tools, tool results.

    Refuses, when made, a template that changes what it has already rendered once the conversation goes on: the tokens
    the model has seen could then not be the template's. (Dropping the model's earlier *thinking* is fine: nothing is
    ever rendered again here.)
    """

    def __init__(self, tokenizer: Any, settings: Mapping[str, Any]) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                "The tokenizer has no chat template. Use the instruct version of the model, "
                "or set tokenizer.chat_template."
            )
        self._tokenizer = tokenizer
        self._settings = dict(settings)
        reason = self._unsteady(())
        if reason:
            raise ConfigError(
                f"The chat template cannot be used for episodes of many turns: {reason}. "
                "Give the tokenizer a template that only ever adds to what it rendered before."
            )
        self.takes_system = not self._unsteady(("system",))
        """Whether a system message can stand alone; otherwise it goes in front of the first user message."""
        self.renders_tools = self._shows_tools()
        """Whether it tells the model which tools there are."""
        self.takes_tool_role = self._frames_tool_results()
        """Whether it has a frame of its own for the results of tools. Every round of results is framed like the first;
        DeepSeek-V3's template forgets a mark from the second round on."""

    def opening(self, roles: Sequence[str], tools: MaskedTools | None = None) -> TemplatePieces:
        """The scaffold of a whole conversation, up to where the model starts to speak."""
        return self._scaffold(roles, 0, tools)

    def bridge(self, roles: Sequence[str]) -> TemplatePieces:
        """The scaffold from the end of what the model said, over new messages, to where it speaks again."""
        return self._scaffold(("user", "assistant", *roles), 2)

    def place_system(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Move a system message into the first user message, for templates that have no place for it."""
        if self.takes_system or len(messages) < 2 or messages[0]["role"] != "system":
            return messages
        text = f"{messages[0]['content']}\n\n{messages[1]['content']}"
        return [{**messages[1], "content": text}, *messages[2:]]

    def _scaffold(self, roles: Sequence[str], skip: int, tools: MaskedTools | None = None) -> TemplatePieces:
        marks = [_mark("Text", place) for place in range(len(roles))]
        fixed = tools.fixed if tools else {}
        rendered = self._render(roles, marks, tools)
        names = _MARK.findall(rendered)
        padded = self._render(roles, [f" \n{mark}{_PROBE}{_mark('End', n)}\n " for n, mark in enumerate(marks)], tools)
        if [name for name in names if name not in fixed] != marks:
            raise ConfigError(
                f"The chat template does not show each message once and in order, for the roles {list(roles)}."
            )
        found = _read_slots(padded, marks)
        slots = [Slot(fixed=fixed[name]) if name in fixed else next(found) for name in names]
        return TemplatePieces(tuple(_MARK.split(rendered)[skip:]), tuple(slots[skip:]))

    def _render(self, roles: Sequence[str], texts: Sequence[str], tools: MaskedTools | None = None) -> str:
        messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
        settings = {**self._settings, "tools": tools.tools} if tools else self._settings
        try:
            return self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **settings)
        except Exception as error:  # a template is a program, and raises what it likes
            raise ConfigError(
                f"The chat template refuses a conversation of the roles {list(roles)}: {error}"
            ) from error

    def _unsteady(self, lead: tuple[str, ...]) -> str:
        """Why the template is not steady while a conversation grows by two turns, or an empty string."""
        talks = [(*lead, "user", *("assistant", "user") * turns) for turns in range(3)]
        try:
            first, second, third = [self._scaffold(roles, 0).pieces for roles in talks]
        except ConfigError as error:
            return str(error).rstrip(".")
        start = len(lead) + 1
        if not (first[:start] == second[:start] == third[:start]):
            return "it changes the opening messages once more messages follow"
        # The last piece of the shorter talk is where the model starts to speak; in the longer one its text follows
        # there. Either may have a thinking block that the other lacks.
        for shorter, longer, place in ((first, second, start), (second, third, start + 2)):
            if not _starts_alike(shorter[place], longer[place]):
                return "it starts the model's turn in one way to generate and in another way in the history"
        if second[start + 1] != third[start + 1] or not _starts_alike(second[start + 2], third[start + 4]):
            return "it renders the same message differently, depending on where in the conversation it stands"
        return ""

    def _shows_tools(self) -> bool:
        tools = MaskedTools(json.dumps([_SAMPLE_TOOL]), _NOTHING)
        openings = [("user",), ("system", "user")] if self.takes_system else [("user",)]
        try:
            return all(_SAMPLE_NAME in "".join(self.opening(roles, tools).pieces) for roles in openings)
        except ConfigError:
            return False

    def _frames_tool_results(self) -> bool:
        try:
            one = self.bridge(("tool",)).pieces
            self.bridge(("tool", "tool"))
            later = self._scaffold(("user", "assistant", "tool", "assistant", "user"), 0).pieces
        except ConfigError:
            return False
        if not _starts_alike(one[1], later[3]):
            return False
        # Many templates write the name of any role into the same frame. The model then never saw a turn of "tool".
        try:
            return self.bridge((_NO_ROLE,)).pieces != tuple(piece.replace("tool", _NO_ROLE) for piece in one)
        except ConfigError:
            return True


class MaskedTools:
    """Tools for the template, with a mark in place of each control token that a name or a description spells.

    Example:
        >>> tools = MaskedTools('[{"description": "Ends with <|im_end|>"}]', re.compile(r"<[|]im_end[|]>"))
        >>> tools.tools, tools.fixed
        ([{'description': 'Ends with TurnsmithControlAAAA'}], {'TurnsmithControlAAAA': '<|im_end|>'})
    """

    def __init__(self, text: str, controls: re.Pattern[str]) -> None:
        spelt = list(dict.fromkeys(controls.findall(text)))
        marks = {name: _mark("Control", place) for place, name in enumerate(spelt)}
        self.text = controls.sub(lambda match: marks[match[0]], text)
        """As JSON."""
        self.tools: list[dict[str, Any]] = json.loads(self.text)
        self.fixed = {mark: name for name, mark in marks.items()}
        """What stands behind each mark."""


_MARK = re.compile(r"Turnsmith(?:Text|End|Control)[A-Z]{4}")
_PROBE = "\"\n'<&>é\\"
"""Characters that a template escapes, if it escapes any."""
_NOTHING = re.compile(r"(?!)")
_NO_ROLE = "turnsmith"
_SAMPLE_NAME = "turnsmith_look_up"
_SAMPLE_TOOL = {
    "type": "function",
    "function": {
        "name": _SAMPLE_NAME,
        "description": "Looks something up.",
        "parameters": {
            "type": "object",
            "properties": {"key": {"type": "string", "description": "What to look up."}},
            "required": ["key"],
        },
    },
}


def _mark(kind: str, place: int) -> str:
    # Letters only: nothing that a template strips, escapes or splits on.
    letters = "".join(chr(ord("A") + place // 26**power % 26) for power in (3, 2, 1, 0))
    return f"Turnsmith{kind}{letters}"


def _read_slots(padded: str, marks: Sequence[str]) -> Iterator[Slot]:
    """What the template does to each message's text, read off a rendering with white space and a probe in it."""
    pieces, names = _MARK.split(padded), _MARK.findall(padded)
    places = {name: place for place, name in enumerate(names)}
    for number, mark in enumerate(marks):
        place = places.get(mark, -1)
        if place < 0 or places.get(_mark("End", number)) != place + 1:
            raise ConfigError("The chat template cuts the texts of messages.")
        before, probe, after = pieces[place : place + 3]
        quoted = probe == json.dumps(_PROBE, ensure_ascii=False)[1:-1]
        if not quoted and probe != _PROBE:
            raise ConfigError("The chat template changes the texts of messages in a way that turnsmith does not know.")
        newline = r"\n" if quoted else "\n"
        yield Slot(not before.endswith(f" {newline}"), not after.startswith(f"{newline} "), quoted)


def _starts_alike(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)
