"""Converts conversations to tokens, without ever re-tokenising what the model sampled.

A conversation starts with one rendered prompt. After each turn of the model only the *bridge* is encoded: the end of
its turn if it did not sample that itself, the new messages, and the start of its next turn. The history is never
rendered again, so a turn costs the same at token 100 and at token 100,000, and the model's tokens stay as sampled.

Why not the bridges of the `renderers` package (0.1.12): `DefaultRenderer` has none, and a hand-written renderer such as
Qwen3's has none before a user message unless it keeps all thinking; it then encodes observations with control tokens
enabled, so that `<|im_start|>` in an observation becomes a real turn marker. Both copy the whole history at each turn.
`tests/unit/inference/test_renderers.py` shows this, and that the tokens are equal where both support a conversation;
`test_chat_families.py` shows the forged control tokens on real tokenizers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from turnsmith.errors import ConfigError, TextRefused
from turnsmith.inference.chat.control_tokens import ControlTokens
from turnsmith.inference.chat.formats import set_template
from turnsmith.inference.chat.template import (
    ChatTemplate,
    MaskedTools,
    Message,
    SlottedText,
    TextSlot,
    ToolSchema,
)
from turnsmith.text import replace_surrogates

__all__ = ["Chat", "Message", "ToolSchema"]

_MAX_LAYOUTS = 256
"""Size of each layout cache; a run needs a handful, unless each episode has its own tools."""


class Chat:
    """Converts between a conversation and its tokens, for one tokenizer. Created once per process and shared by all
    episodes; safe to use from many asyncio tasks. A tokenizer without a chat template gets a plain one, with a warning.

    Two properties hold for every template it accepts (it rejects the others on creation):

    - `open(messages) + sampled + bridge(new)` equals the template's own rendering, as long as the sampled tokens are
      those that the tokenizer would choose for the same text;
    - no text of a message or tool description is ever encoded as a control token, so none can forge a turn.

    Example:
        >>> from turnsmith.inference.models import resolve
        >>> from transformers import AutoTokenizer
        >>> chat = Chat(AutoTokenizer.from_pretrained(resolve("tiny")))
        >>> prompt = chat.open([{"role": "user", "content": "Hi"}])
        >>> chat.show(prompt)
        '<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n'
        >>> chat.show(chat.bridge([{"role": "user", "content": "Go on"}], closed=True))
        '\\n<|im_start|>user\\nGo on<|im_end|>\\n<|im_start|>assistant\\n'
    """

    def __init__(self, tokenizer: Any, *, template_settings: Mapping[str, Any] | None = None) -> None:
        set_template(tokenizer)
        self._tokenizer = tokenizer
        # The Rust tokenizer inside a Hugging Face one, which is ten times faster per call.
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        self.template_settings: dict[str, Any] = dict(template_settings or {})
        """What the template is rendered with, besides messages and tools."""
        self._template = ChatTemplate(tokenizer, self.template_settings)
        self._controls = ControlTokens(tokenizer)
        self._opening = lru_cache(_MAX_LAYOUTS)(self._opening_layout)
        self._bridge = lru_cache(_MAX_LAYOUTS)(lambda roles: self._with_tool_results(roles, self._bridge_layout))
        # The episodes of a group have the same opening, and start together.
        self._encode_opening = lru_cache(32)(self._encode)
        self._plain = _Layout(("", ""), (TextSlot(),), 0)
        self.close_id: int = self._bridge_layout(("user",)).close_id
        """The token that ends the model's turn, such as `<|im_end|>`."""
        # Llama 3 can end a turn that calls a tool with another token.
        ends = (self.close_id, tokenizer.eos_token_id, self._controls.names.get("<|eom_id|>"))
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys(int(end) for end in ends if end is not None))
        """Sampling ends after any of these."""
        self._stop_ids = frozenset(self.stop_token_ids)
        self.renders_tools: bool = self._template.renders_tools
        """Whether the template shows the tools passed to `open`. If not, describe them in the system prompt."""
        self.takes_tool_role: bool = self._template.takes_tool_role and self._closes_alike(("tool",))
        """Whether the template has a `tool` role. If not, results are sent as user messages: `Tool result ...`."""
        self.takes_system: bool = self._template.takes_system
        """Whether the template has a system role. If not, its text is put before the first user message."""

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of these conversations."""
        return self._tokenizer

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSchema] | None = None) -> list[int]:
        """Tokens of the first prompt, up to the start of the model's turn.

        Args:
            messages: The conversation so far.
            tools: Tools in OpenAI's format, for the template to show; ignored unless `renders_tools`.
        """
        messages = self._template.merge_system(messages)
        roles = tuple(message["role"] for message in messages)
        # JSON is the cache key, however the template writes the tools.
        tools_json = json.dumps(tools, ensure_ascii=False) if tools and self.renders_tools else ""
        return self._fill(self._opening(roles, tools_json), messages, self._encode_opening)

    def bridge(self, new_messages: Sequence[Message], *, closed: bool) -> list[int]:
        """Tokens to append after the model's sampled tokens, up to the start of its next turn.

        Args:
            new_messages: Messages to the model. Those with role `tool` are tool results, and may have a `name`.
            closed: Whether the model ended its turn itself (its last token is one of `stop_token_ids`).
        """
        roles = tuple(message["role"] for message in new_messages)
        layout = self._bridge(roles)
        ids = self._fill(layout, new_messages, self._encode)
        return ids[layout.close_length :] if closed else ids

    def is_closed(self, ids: Sequence[int]) -> bool:
        """Whether the sampled ids end with a stop token."""
        return bool(ids) and ids[-1] in self._stop_ids

    def text(self, ids: Sequence[int], *, keep_controls: bool = False) -> str:
        """Decode what the model sampled, without the stop token at the end.

        Other special tokens are left out too, unless `keep_controls`. Tool-call markers stay if the tokenizer does not
        count them as special, as in Qwen and DeepSeek; Llama's `<|python_tag|>` needs `keep_controls`.
        """
        ids = ids[:-1] if self.is_closed(ids) else ids
        decode = self._tokenizer.decode if self._backend is None else self._backend.decode
        return decode(list(ids), skip_special_tokens=not keep_controls)

    def show(self, ids: Sequence[int]) -> str:
        """Decode tokens with control tokens included, for people to read."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def encode(self, text: str) -> list[int]:
        """Encode plain text; none of its tokens is a control token."""
        return self._fill(self._plain, [{"role": "", "content": text}], self._encode)

    def _with_tool_results(self, roles: tuple[str, ...], make: Callable[[tuple[str, ...]], _Layout]) -> _Layout:
        """The layout for these roles, with tool results as user messages if the template does not accept them."""
        if "tool" not in roles:
            return make(roles)
        if self.takes_tool_role:
            try:
                return make(roles)
            except ConfigError:  # some templates accept tool results, but not next to other messages
                pass
        messages = _as_user_messages([{"role": role, "content": ""} for role in roles])
        return replace(make(tuple(message["role"] for message in messages)), tool_results_as_user=True)

    def _opening_layout(self, roles: tuple[str, ...], tools_json: str) -> _Layout:
        masked = self._mask(tools_json) if tools_json else None
        return self._with_tool_results(roles, lambda roles: self._layout(self._template.opening(roles, masked)))

    def _bridge_layout(self, roles: tuple[str, ...]) -> _Layout:
        layout = self._layout(self._template.bridge(roles))
        ids = self._encode(layout.fixed[0])
        close = next((index for index, token in enumerate(ids) if token in self._controls.ids), None)
        if close is None or self._tokenizer.decode(ids[:close]).strip():
            raise ConfigError(
                "The chat template does not end the model's turn with a control token such as <|im_end|>, so the end "
                "of a turn cannot be detected. Set model.chat_template to another (plain needs only an end-of-text "
                "token), or use the instruct version of the model."
            )
        return replace(layout, close_length=close + 1, close_id=ids[close])

    def _closes_alike(self, roles: tuple[str, ...]) -> bool:
        try:
            return self._bridge_layout(roles).close_id == self.close_id
        except ConfigError:
            return False

    def _mask(self, tools_json: str) -> MaskedTools:
        masked = MaskedTools(tools_json, self._controls.pattern)
        # The layout's control tokens are counted with this text in it, so the text must not add any.
        if self._controls.count(self._encode(masked.text)):
            raise TextRefused(
                "A tool description would be encoded as control tokens of the model, so it cannot be sent."
            )
        return masked

    def _layout(self, template: SlottedText) -> _Layout:
        control_count = self._controls.count(self._encode("".join(template.fixed)))
        return _Layout(template.fixed, template.slots, control_count)

    def _fill(self, layout: _Layout, messages: Sequence[Message], encode: Callable[[str], list[int]]) -> list[int]:
        """Put the texts into the slots and encode.

        Texts are encoded with the fixed text, because a token may span their border (such as two newlines), and only
        that gives the template's own tokens. A text that spells out a control token is split inside it.
        """
        if layout.tool_results_as_user:
            messages = _as_user_messages(messages)
        find = self._controls.pattern.search
        contents = (message["content"] for message in messages)
        ids: list[int] = []
        pending = layout.fixed[0]
        for slot, fixed in zip(layout.slots, layout.fixed[1:], strict=True):
            text = slot.render(next(contents)) if slot.literal is None else slot.literal
            done = 0
            while (match := find(text, done)) is not None:
                # Split after the first character: neither half is a control token.
                split = match.start() + 1
                ids += encode(pending + text[done:split])
                pending, done = "", split
            pending += text[done:] + fixed
        if pending:
            ids += encode(pending)
        # For every tokenizer: the only control tokens are the template's own.
        if self._controls.count(ids) != layout.control_count:
            raise TextRefused(
                "The text of a message would be encoded as control tokens of the model, so it cannot be sent."
            )
        return ids

    def _encode(self, text: str) -> list[int]:
        backend = self._backend
        # A caller that truncated or padded leaves that enabled in the shared backend; the tokenizer resets it.
        if backend is None or backend.truncation is not None or backend.padding is not None:
            return list(self._tokenizer.encode(replace_surrogates(text), add_special_tokens=False))
        try:
            return backend.encode(text, add_special_tokens=False).ids
        except TypeError:  # a lone surrogate
            return backend.encode(replace_surrogates(text), add_special_tokens=False).ids


@dataclass(frozen=True, slots=True)
class _Layout:
    """A rendered template with slots for message texts, and what is needed to fill it."""

    fixed: tuple[str, ...]
    """The fixed text; one more than there are slots."""
    slots: tuple[TextSlot, ...]
    control_count: int
    """Control tokens in the fixed text."""
    close_length: int = 0
    """How many of its first tokens end the model's turn."""
    close_id: int = -1
    tool_results_as_user: bool = False
    """Whether tool results are sent as user messages."""


def _as_user_messages(messages: Sequence[Message]) -> list[Message]:
    """Turn tool results into user messages, merged with adjacent ones: many templates need alternating roles."""
    merged: list[Message] = []
    has_result = False  # whether the last message holds a tool result, so that a user message merges into it
    for message in messages:
        role, text = message["role"], message["content"]
        is_result = role == "tool"
        if is_result:
            name = message.get("name")
            role, text = "user", f"Tool result ({name}): {text}" if name else f"Tool result: {text}"
        if role == "user" and (has_result or is_result) and merged and merged[-1]["role"] == "user":
            text = f"{merged.pop()['content']}\n\n{text}"
            is_result = True
        merged.append({"role": role, "content": text})
        has_result = is_result
    return merged
