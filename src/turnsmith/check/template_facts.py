"""What a chat template does to a conversation, found by rendering some."""

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
_ANSWER = "Nobody."
_BESIDE = "One moment."
_CALL = {"name": "look_up", "arguments": {"key": "a b"}}
_RESULT = {"role": "tool", "name": "look_up", "tool_call_id": "call00001", "content": "c d"}


@dataclass(frozen=True, slots=True)
class TemplateFacts:
    """What a template itself does; turnsmith renders each message once, so some of it concerns only other programs.

    Example:
        >>> from transformers import AutoTokenizer
        >>> from turnsmith.models import resolve
        >>> facts = TemplateFacts.of(Chat(AutoTokenizer.from_pretrained(resolve("tiny"))))
        >>> facts.system_role, facts.tool_role, facts.appends_turns, facts.keeps_thinking, facts.end_of_turn
        (True, False, True, True, '<|im_end|>')
    """

    system_role: bool
    adds_system_text: bool
    """Whether it writes a system message of its own if there is none."""
    has_date: bool
    """Whether it writes today's date into the prompt."""
    tool_role: bool
    shows_tools: bool
    appends_turns: bool
    """Whether a later prompt begins with the earlier one and the answer to it, if the answer is plain text."""
    keeps_thinking: bool
    """The same, if the answer begins with thinking and a user message follows it."""
    writes_calls: bool
    """Whether it writes the `tool_calls` of a message."""
    keeps_text_beside_call: bool
    """Whether it also writes the text of a message that has a call."""
    closes_calls: bool
    """Whether it ends a turn with one call as it ends any other turn."""
    appends_calls: bool
    """Whether a later prompt begins with the earlier one and the closed call, if a tool's result follows."""
    repeats_results: bool
    """Whether it writes the second call with its result like the first."""
    end_of_turn: str
    """The token that ends the model's turn."""
    end_is_eos: bool
    """Whether it is the tokenizer's end-of-sequence token."""

    @classmethod
    def of(cls, chat: Chat) -> TemplateFacts:
        """The facts about a chat's template, with the chat's settings."""
        tokenizer, end = chat.tokenizer, chat.show([chat.close_id])
        turn, beside = write_call(chat, _CALL), write_call(chat, _CALL, _BESIDE)
        return cls(
            system_role=chat.takes_system,
            adds_system_text="sys" in str(render(chat, [_USER])).partition(_USER["content"])[0].lower(),
            has_date="strftime_now" in str(tokenizer.chat_template),
            tool_role=chat.takes_tool_role,
            shows_tools=chat.renders_tools,
            appends_turns=_appends(chat, _ANSWER),
            keeps_thinking=_appends(chat, THOUGHT + _ANSWER),
            writes_calls=turn is not None,
            keeps_text_beside_call=beside is not None and _BESIDE in beside,
            closes_calls=turn is not None and end in turn,
            appends_calls=turn is not None and end in turn and _appends_call(chat, turn),
            repeats_results=turn is not None and _repeats_results(chat),
            end_of_turn=end,
            end_is_eos=chat.close_id == tokenizer.eos_token_id,
        )


def render(chat: Chat, messages: Sequence[Mapping[str, Any]], *, prompt: bool = True) -> str | None:
    """The messages as the template writes them, with the start of the model's turn; None if it raises."""
    settings = {**chat.template_settings, "tokenize": False, "add_generation_prompt": prompt}
    try:
        return str(chat.tokenizer.apply_chat_template(list(messages), **settings))
    except Exception:  # noqa: BLE001 - a template is a program and can raise anything
        return None


def write_call(chat: Chat, call: Mapping[str, Any], text: str = "") -> str | None:
    """The model's turn with this call, as the template writes it, with the end of the turn; None if it does not."""
    for message in _spellings(call, text):
        rendered, prompt = render(chat, [_USER, message], prompt=False), render(chat, [_USER])
        start = None if rendered is None or prompt is None else _common(rendered, prompt)
        if rendered is not None and start is not None and call["name"] in rendered[start:]:
            return rendered[start:]
    return None


def _spellings(call: Mapping[str, Any], text: str = "") -> list[dict[str, Any]]:
    """The call as a message: templates differ in whether arguments are an object or text, and what stands beside."""
    arguments = call["arguments"]
    return [
        {
            "role": "assistant",
            "content": content,
            "tool_calls": [{"id": "call00001", "type": "function", "function": {**call, "arguments": given}}],
        }
        for given in (arguments, json.dumps(arguments, ensure_ascii=False))
        for content in ([text] if text else ["", None])
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


def _appends_call(chat: Chat, turn: str) -> bool:
    """The turn may have an empty thinking block, which Qwen3's template writes only in the last message."""
    before, turns = render(chat, [_USER]), (turn, turn.removeprefix("<think>\n\n</think>\n\n"))
    afters = [render(chat, [_USER, message, _RESULT]) for message in _spellings(_CALL)]
    return any(after and before and after.startswith(before + one) for after in afters for one in turns)


def _repeats_results(chat: Chat) -> bool:
    for message in _spellings(_CALL):
        rounds = str(render(chat, [_USER, message, _RESULT, message, _RESULT])).split(_RESULT["content"])
        if len(rounds) == 3 and all(str(_CALL["name"]) in one for one in rounds[:2]):
            first, second = [one.rpartition(str(_CALL["name"]))[2] for one in rounds[:2]]
            return first == second
    return False
