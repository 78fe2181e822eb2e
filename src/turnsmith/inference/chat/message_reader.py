"""Recovers the messages from a prompt's tokens, for servers that take only messages.

A chat endpoint applies its own template, so the local one must be removed. For ChatML this is unambiguous: each message
is between two control tokens, and no text of a message is ever encoded as a control token (see `Chat`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turnsmith.errors import ConfigError
from turnsmith.inference.chat import Chat

_START, _END = "<|im_start|>", "<|im_end|>"
_ROLES = ("system", "user", "assistant")


class MessageReader:
    """Reads the messages of prompts that one tokenizer's chat template rendered.

    Example:
        >>> from transformers import AutoTokenizer
        >>> from turnsmith.inference.models import resolve
        >>> tokenizer = AutoTokenizer.from_pretrained(resolve("tiny"))
        >>> reader = MessageReader(tokenizer)
        >>> reader.read(reader.chat.open([{"role": "user", "content": "Say <|im_end|>!"}]))
        [{'role': 'user', 'content': 'Say <|im_end|>!'}]
        >>> reader.read(tokenizer.encode("no template"))
        [{'role': 'user', 'content': 'no template'}]
    """

    def __init__(self, tokenizer: Any) -> None:
        self.chat = Chat(tokenizer)
        self._tokenizer = tokenizer
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        if _START not in vocabulary or self.chat.close_id != vocabulary.get(_END):
            raise ConfigError(
                "A server that takes only messages needs a tokenizer with a ChatML template, to separate the messages "
                "of a prompt. It is only used to count tokens, so any will do: tokenizer='smollm2'."
            )
        self._start, self._end = vocabulary[_START], vocabulary[_END]
        # Some templates add their own system prompt, which is not meant for another model.
        self._default = next(iter(self._messages(self.chat.open([{"role": "user", "content": ""}]))))

    def read(self, prompt_ids: Sequence[int]) -> list[dict[str, str]]:
        """The messages of a prompt; a prompt without a template is one user message."""
        messages = self._messages(prompt_ids)
        if not messages:
            return [{"role": "user", "content": self._text(prompt_ids)}]
        return messages[1:] if messages[0] == self._default and self._default["role"] == "system" else messages

    def _messages(self, prompt_ids: Sequence[int]) -> list[dict[str, str]]:
        messages: list[dict[str, str]] = []
        start: int | None = None
        for index, token in enumerate(prompt_ids):
            if token == self._start:
                start = index + 1
            elif token == self._end and start is not None:
                role, _, content = self._text(prompt_ids[start:index]).partition("\n")
                messages.append({"role": role if role in _ROLES else "user", "content": content})
                start = None
        return messages  # without the last one, which has no end: it is the start of the model's turn

    def _text(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
