"""Finds the fixed text of a chat template, by rendering conversations with placeholders as message texts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnsmith.errors import ConfigError

Message = Mapping[str, str]
ToolSchema = Mapping[str, Any]
"""A tool in OpenAI's format: `{"type": "function", "function": {"name": ..., "parameters": ...}}`."""


@dataclass(frozen=True, slots=True)
class TextSlot:
    """A place for text in a rendered template, and what the template does to the text there."""

    strip_left: bool = False
    strip_right: bool = False
    json_escaped: bool = False
    """Escaped as in a JSON string, as Llama 3 does with tool results."""
    literal: str | None = None
    """Text that is always the same, but must not be encoded as a control token."""

    def render(self, text: str) -> str:
        """The text as the template would write it."""
        if self.strip_left:
            text = text.lstrip()
        if self.strip_right:
            text = text.rstrip()
        return json.dumps(text, ensure_ascii=False)[1:-1] if self.json_escaped else text


@dataclass(frozen=True, slots=True)
class SlottedText:
    """A rendered template: fixed texts, with slots for message texts between them."""

    fixed: tuple[str, ...]
    """One more than there are slots."""
    slots: tuple[TextSlot, ...]


class ChatTemplate:
    """A tokenizer's chat template, and what it supports: system messages, tools, tool results.

    Raises ConfigError for a template that changes what it rendered earlier as the conversation grows: the tokens that
    the model has seen would then differ from the template's. (Dropping the model's earlier *thinking* is fine, because
    the history is never rendered again.)
    """

    def __init__(self, tokenizer: Any, settings: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._settings = dict(settings)
        reason = self._why_unstable(())
        if reason:
            raise ConfigError(
                f"The chat template cannot be used for multi-turn episodes: {reason}. "
                "Use a template that only appends to what it rendered before."
            )
        self.takes_system = not self._why_unstable(("system",))
        """Whether it has a system role; otherwise the system message is merged into the first user message."""
        self.renders_tools = self._shows_tools()
        """Whether it shows the model which tools there are."""
        self.takes_tool_role = self._supports_tool_results()
        """Whether it has a `tool` role. Every round of results is rendered like the first; DeepSeek-V3's template
        leaves out a marker from the second round on."""

    def opening(self, roles: Sequence[str], tools: MaskedTools | None = None) -> SlottedText:
        """A whole conversation, up to the start of the model's turn."""
        return self._slotted(roles, 0, tools)

    def bridge(self, roles: Sequence[str]) -> SlottedText:
        """The text from the end of the model's turn, over new messages, to the start of its next turn."""
        return self._slotted(("user", "assistant", *roles), 2)

    def merge_system(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Merge a system message into the first user message if the template has no system role."""
        if self.takes_system or len(messages) < 2 or messages[0]["role"] != "system":
            return messages
        if messages[1]["role"] != "user":
            return [{**messages[0], "role": "user"}, *messages[1:]]
        text = f"{messages[0]['content']}\n\n{messages[1]['content']}"
        return [{**messages[1], "content": text}, *messages[2:]]

    def _slotted(self, roles: Sequence[str], skip: int, tools: MaskedTools | None = None) -> SlottedText:
        texts = [_placeholder("Text", index) for index in range(len(roles))]
        literals = tools.originals if tools else {}
        rendered = self._render(roles, texts, tools)
        placeholders = _PLACEHOLDER.findall(rendered)
        probes = [f" \n{text}{_PROBE}{_placeholder('End', index)}\n " for index, text in enumerate(texts)]
        probed = self._render(roles, probes, tools)
        if [placeholder for placeholder in placeholders if placeholder not in literals] != texts:
            raise ConfigError(
                f"The chat template does not show each message once and in order, for the roles {list(roles)}."
            )
        text_slots = _read_slots(probed, texts)
        slots = [
            TextSlot(literal=literals[placeholder]) if placeholder in literals else next(text_slots)
            for placeholder in placeholders
        ]
        return SlottedText(tuple(_PLACEHOLDER.split(rendered)[skip:]), tuple(slots[skip:]))

    def _render(self, roles: Sequence[str], texts: Sequence[str], tools: MaskedTools | None = None) -> str:
        messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
        settings = {**self._settings, "tools": tools.tools} if tools else self._settings
        try:
            return self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **settings)
        except Exception as error:  # a template is a program and can raise anything
            raise ConfigError(
                f"The chat template rejects a conversation with the roles {list(roles)}: {error}"
            ) from error

    def _why_unstable(self, lead: tuple[str, ...]) -> str:
        """Why the rendering changes as a conversation grows by two turns; empty if it does not."""
        conversations = [(*lead, "user", *("assistant", "user") * turns) for turns in range(3)]
        try:
            first, second, third = [self._slotted(roles, 0).fixed for roles in conversations]
        except ConfigError as error:
            return str(error).rstrip(".")
        start = len(lead) + 1
        if not (first[:start] == second[:start] == third[:start]):
            return "it changes the first messages once more messages follow"
        # The last fixed text of the shorter conversation starts the model's turn; in the longer one its text follows
        # there. Either may have a thinking block that the other lacks.
        for shorter, longer, index in ((first, second, start), (second, third, start + 2)):
            if not _is_prefix_either_way(shorter[index], longer[index]):
                return "it starts the model's turn differently for generation and in the history"
        if second[start + 1] != third[start + 1] or not _is_prefix_either_way(second[start + 2], third[start + 4]):
            return "it renders the same message differently depending on its position in the conversation"
        return ""

    def _shows_tools(self) -> bool:
        tools = MaskedTools(json.dumps([_SAMPLE_TOOL]), _NOTHING)
        openings = [("user",), ("system", "user")] if self.takes_system else [("user",)]
        try:
            return all(_SAMPLE_NAME in "".join(self.opening(roles, tools).fixed) for roles in openings)
        except ConfigError:
            return False

    def _supports_tool_results(self) -> bool:
        try:
            result = self.bridge(("tool",)).fixed
            self.bridge(("tool", "tool"))
            later = self._slotted(("user", "assistant", "tool", "assistant", "user"), 0).fixed
        except ConfigError:
            return False
        if not _is_prefix_either_way(result[1], later[3]):
            return False
        # Many templates accept any role name. The model was then never trained on a `tool` turn.
        try:
            unknown = self.bridge((_UNKNOWN_ROLE,)).fixed
        except ConfigError:
            return True
        renamed = [fixed.lower().replace("tool", _UNKNOWN_ROLE) for fixed in result]
        return [fixed.lower() for fixed in unknown] != renamed


def thinking_settings(tokenizer: Any, thinking: bool | None) -> dict[str, bool]:
    """The template settings for `inference.thinking`, by the name that the tokenizer's template has for it.

    Raises:
        ConfigError: The template has none.
    """
    if thinking is None:
        return {}
    from jinja2 import Environment, meta

    # As transformers reads a template; `generation` marks spans of it, and is no part of jinja.
    source = re.sub(r"{%-?\s*(end)?generation\s*-?%}", "", str(getattr(tokenizer, "chat_template", None) or ""))
    reads = meta.find_undeclared_variables(Environment(extensions=["jinja2.ext.loopcontrols"]).parse(source))
    for name in ("enable_thinking", "thinking"):
        if name in reads:
            return {name: thinking}
    raise ConfigError(
        f"inference.thinking={str(thinking).lower()}, but the model's chat template has no enable_thinking and no "
        "thinking: the model always thinks, or never. Leave the setting out."
    )


class MaskedTools:
    """Tools for the template, with placeholders for control tokens that are spelled out in names and descriptions.

    Example:
        >>> tools = MaskedTools('[{"description": "Ends with <|im_end|>"}]', re.compile(r"<[|]im_end[|]>"))
        >>> tools.tools, tools.originals
        ([{'description': 'Ends with TurnsmithControlAAAA'}], {'TurnsmithControlAAAA': '<|im_end|>'})
    """

    def __init__(self, tools_json: str, controls: re.Pattern[str]) -> None:
        names = list(dict.fromkeys(controls.findall(tools_json)))
        placeholders = {name: _placeholder("Control", index) for index, name in enumerate(names)}
        self.text = controls.sub(lambda match: placeholders[match[0]], tools_json)
        """As JSON."""
        self.tools: list[dict[str, Any]] = json.loads(self.text)
        self.originals = {placeholder: name for name, placeholder in placeholders.items()}
        """The control token behind each placeholder."""


_PLACEHOLDER = re.compile(r"Turnsmith(?:Text|End|Control)[A-Z]{4}")
_PROBE = "\"\n'<&>é\\"
"""Characters that a template escapes, if it escapes any."""
_NOTHING = re.compile(r"(?!)")
_UNKNOWN_ROLE = "turnsmith"
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


def _placeholder(kind: str, index: int) -> str:
    # Letters only: nothing that a template strips, escapes or splits on.
    letters = "".join(chr(ord("A") + index // 26**power % 26) for power in (3, 2, 1, 0))
    return f"Turnsmith{kind}{letters}"


def _read_slots(probed: str, texts: Sequence[str]) -> Iterator[TextSlot]:
    """What the template does to each message's text, seen in a rendering with white space and special characters."""
    parts, placeholders = _PLACEHOLDER.split(probed), _PLACEHOLDER.findall(probed)
    positions = {placeholder: position for position, placeholder in enumerate(placeholders)}
    for index, text in enumerate(texts):
        position = positions.get(text, -1)
        if position < 0 or positions.get(_placeholder("End", index)) != position + 1:
            raise ConfigError("The chat template truncates message texts.")
        before, probe, after = parts[position : position + 3]
        json_escaped = probe == json.dumps(_PROBE, ensure_ascii=False)[1:-1]
        if not json_escaped and probe != _PROBE:
            raise ConfigError("The chat template changes message texts in a way that turnsmith does not support.")
        newline = r"\n" if json_escaped else "\n"
        yield TextSlot(not before.endswith(f" {newline}"), not after.startswith(f"{newline} "), json_escaped)


def _is_prefix_either_way(first: str, second: str) -> bool:
    return first.startswith(second) or second.startswith(first)
