"""A conversation as bytes, for episodes without a model: loading a real tokenizer takes longer than most checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_CLOSE, _ROLE = 256, 257


class ByteChat:
    """Has the methods of `Chat` that an episode calls; every byte of a text is a token.

    Example:
        >>> chat = ByteChat()
        >>> chat.show(chat.open([{"role": "user", "content": "Hi"}]))
        '<user>Hi</>\\n<assistant>'
    """

    close_id = _CLOSE
    stop_token_ids = (_CLOSE,)
    renders_tools = False
    takes_tool_role = True

    def open(self, messages: Sequence[Mapping[str, object]], tools: Any = None) -> list[int]:
        """The first prompt."""
        return [*self._messages(messages), *self._head("assistant")]

    def bridge(self, new_messages: Sequence[Mapping[str, object]], *, closed: bool) -> list[int]:
        """What follows the model's turn."""
        return [*(() if closed else (_CLOSE,)), *b"\n", *self._messages(new_messages), *self._head("assistant")]

    def is_closed(self, ids: Sequence[int]) -> bool:
        """Whether the turn was ended."""
        return bool(ids) and ids[-1] == _CLOSE

    def text(self, ids: Sequence[int], *, keep_controls: bool = False) -> str:
        """What the model wrote."""
        return bytes(byte for byte in ids if byte < _CLOSE).decode(errors="replace")

    def show(self, ids: Sequence[int]) -> str:
        """The conversation for people to read, and for scripted policies."""
        text, data = "", bytearray()
        for number in (*ids, -1):
            if 0 <= number < _CLOSE:
                data.append(number)
                continue
            text += data.decode(errors="replace")
            data.clear()
            text += {_CLOSE: "</>"}.get(number, "")
        return text

    def encode(self, text: str) -> list[int]:
        """The bytes of a text."""
        return list(text.encode(errors="replace"))

    def _messages(self, messages: Sequence[Mapping[str, object]]) -> list[int]:
        ids: list[int] = []
        for message in messages:
            ids += [*self._head(str(message["role"])), *self.encode(str(message["content"])), _CLOSE, *b"\n"]
        return ids

    def _head(self, role: str) -> list[int]:
        return [_ROLE, *f"<{role}>".encode()]
