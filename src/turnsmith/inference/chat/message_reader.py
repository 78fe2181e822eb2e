"""From a prompt's tokens back to messages, for servers that take nothing else.

A chat endpoint has a template of its own, so ours is only the wrapping in which an episode's messages travel. ChatML's
can be taken off without doubt: what stands between its two control tokens is one message, and no text of a message ever
becomes a control token (see `Chat`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turnsmith.errors import ConfigError
from turnsmith.inference.chat import Chat

_START, _END = "<|im_start|>", "<|im_end|>"
_ROLES = ("system", "user", "assistant")


class MessageReader:
    """Reads the messages out of prompts that one tokenizer's chat template wrapped.

    Example:
        >>> from transformers import AutoTokenizer
        >>> from turnsmith.models import resolve
        >>> tokenizer = AutoTokenizer.from_pretrained(resolve("tiny"))
        >>> reader = MessageReader(tokenizer)
        >>> reader.read(reader.chat.open([{"role": "user", "content": "Say <|im_end|>!"}]))
        [{'role': 'user', 'content': 'Say <|im_end|>!'}]
        >>> reader.read(tokenizer.encode("no wrapping"))
        [{'role': 'user', 'content': 'no wrapping'}]
    """

    def __init__(self, tokenizer: Any) -> None:
        self.chat = Chat(tokenizer)
        self._tokenizer = tokenizer
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        if _START not in vocabulary or self.chat.close_id != vocabulary.get(_END):
            raise ConfigError(
                "A server that takes only messages needs a tokenizer whose chat template is ChatML, to tell the "
                "messages of a prompt apart. It only counts tokens, so any will do: tokenizer='smollm2'."
            )
        self._start, self._end = vocabulary[_START], vocabulary[_END]
        # Some templates put in a system prompt of their own, which is not meant for another model.
        self._default = next(iter(self._messages(self.chat.open([{"role": "user", "content": ""}]))))

    def read(self, prompt_ids: Sequence[int]) -> list[dict[str, str]]:
        """The messages of a prompt; a prompt without wrapping is one message of the user."""
        messages = self._messages(prompt_ids)
        if not messages:
            return [{"role": "user", "content": self._text(prompt_ids)}]
        return messages[1:] if messages[0] == self._default and self._default["role"] == "system" else messages

    def _messages(self, prompt_ids: Sequence[int]) -> list[dict[str, str]]:
        messages: list[dict[str, str]] = []
        begun: int | None = None
        for place, token in enumerate(prompt_ids):
            if token == self._start:
                begun = place + 1
            elif token == self._end and begun is not None:
                role, _, content = self._text(prompt_ids[begun:place]).partition("\n")
                messages.append({"role": role if role in _ROLES else "user", "content": content})
                begun = None
        return messages  # what is begun and not ended is where the model is to speak

    def _text(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
