"""What a chat template does to a conversation, found by rendering a few."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnsmith.inference.chat import Chat

NO_TOKENIZER = "There is no model, or an agent talks to it in its own way."
"""Why the checks of a template are skipped."""
THOUGHT = "<think>\nHm, let me see.\n</think>\n\n"
"""Thinking, as models write it."""
_USER = {"role": "user", "content": "Who won?"}
_NEXT = {"role": "user", "content": "And then?"}
_CALL = {"name": "look_up", "arguments": {"key": "a b"}}


@dataclass(frozen=True, slots=True)
class TemplateFacts:
    """What a template itself does, as far as the checks need it.

    Example:
        >>> from transformers import AutoTokenizer
        >>> from turnsmith.inference.models import resolve
        >>> facts = TemplateFacts.of(Chat(AutoTokenizer.from_pretrained(resolve("tiny"))))
        >>> facts.system_role, facts.tool_role, facts.keeps_thinking
        (True, False, True)
    """

    system_role: bool
    adds_system_text: bool
    """Whether it writes a system message of its own if there is none."""
    has_date: bool
    """Whether it writes today's date into the prompt."""
    tool_role: bool
    keeps_thinking: bool
    """Whether a later prompt begins with the earlier one and an answer that begins with thinking."""
    closes_calls: bool
    """Whether it ends a turn with one call as it ends any other turn."""

    @classmethod
    def of(cls, chat: Chat) -> TemplateFacts:
        """The facts about a chat's template, with the chat's settings."""
        turn = write_call(chat, _CALL)
        return cls(
            system_role=chat.takes_system,
            adds_system_text="sys" in str(render(chat, [_USER])).partition(_USER["content"])[0].lower(),
            has_date="strftime_now" in str(chat.tokenizer.chat_template),
            tool_role=chat.takes_tool_role,
            keeps_thinking=_appends(chat, THOUGHT + "Nobody."),
            closes_calls=turn is not None and chat.show([chat.close_id]) in turn,
        )


def render(chat: Chat, messages: Sequence[Mapping[str, Any]], *, prompt: bool = True) -> str | None:
    """The messages as the template writes them, with the start of the model's turn; None if it raises."""
    settings = {**chat.template_settings, "tokenize": False, "add_generation_prompt": prompt}
    try:
        return str(chat.tokenizer.apply_chat_template(list(messages), **settings))
    except Exception:  # noqa: BLE001 - a template is a program and can raise anything
        return None


def write_call(chat: Chat, call: Mapping[str, Any]) -> str | None:
    """This call as the template writes it in a turn of the model, with its end; None if it writes no calls."""
    for message in spellings(call):
        rendered, prompt = render(chat, [_USER, message], prompt=False), render(chat, [_USER])
        start = None if rendered is None or prompt is None else _common(rendered, prompt)
        if rendered is not None and start is not None and call["name"] in rendered[start:]:
            return rendered[start:]
    return None


def spellings(call: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The call as messages: some templates want arguments as an object and some as text, with or without content."""
    arguments = call["arguments"]
    return [
        {
            "role": "assistant",
            "content": content,
            "tool_calls": [{"id": "call00001", "type": "function", "function": {**call, "arguments": given}}],
        }
        for given in (arguments, json.dumps(arguments, ensure_ascii=False))
        for content in ("", None)
    ]


def _common(rendered: str, prompt: str) -> int | None:
    """Where the model's turn starts; None if the rendering does not begin with the prompt.

    A template may open thinking for the model in the prompt, or close an empty one, and leave that out later.
    """
    for cut in (prompt, prompt.partition("<think>")[0]):
        if rendered.startswith(cut):
            return len(cut)
    return None


def _appends(chat: Chat, answer: str) -> bool:
    before = render(chat, [_USER])
    after = render(chat, [_USER, {"role": "assistant", "content": answer}, _NEXT])
    return before is not None and after is not None and after.startswith(before + answer)
