"""From messages to tokens, without ever turning what the model said back into tokens.

A conversation opens with one rendered prompt. After each turn of the model only the *bridge* is made: the end of its
turn if it did not end it itself, the new messages, and the start of its next turn. The history is never rendered again,
so a turn costs the same at token 100 and at token 100,000, and the model's own tokens stay exactly as sampled.

Why not the bridges of the `renderers` package (0.1.12): `DefaultRenderer` has none; a hand-written one, such as
Qwen3's, has none either when a user message follows, unless it is told to keep all thinking, and then encodes
observations with control tokens on, so that `<|im_start|>` in an observation becomes a real turn marker. They also copy
the whole history at each turn. `tests/unit/inference/test_renderers.py` shows it, and that the tokens are the same
where both can do it.
The bridge here is read off the model's own chat template once, with placeholders for the texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from turnwise.errors import ConfigError
from turnwise.inference.scaffold import Message, Scaffold, Template

__all__ = ["Chat", "Message"]


class Chat:
    """The chat side of one tokenizer. Made once a process and shared by all episodes; safe to use from many tasks.

    Two properties hold for every template it accepts (it refuses the others when it is made):

    - `open(messages) + sampled + bridge(new)` are the tokens of the template's own rendering, as long as the sampled
      tokens are the ones the tokenizer would choose for the same text;
    - no text of a message ever becomes a control token, so that no observation can forge a turn.

    Example:
        >>> from turnwise.models import resolve
        >>> from transformers import AutoTokenizer
        >>> chat = Chat(AutoTokenizer.from_pretrained(resolve("tiny")))
        >>> prompt = chat.open([{"role": "user", "content": "Hi"}])
        >>> chat.show(prompt)
        '<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n'
        >>> chat.show(chat.bridge([{"role": "user", "content": "Go on"}], closed=True))
        '\\n<|im_start|>user\\nGo on<|im_end|>\\n<|im_start|>assistant\\n'
    """

    def __init__(self, tokenizer: Any, *, template_settings: Mapping[str, Any] | None = None) -> None:
        self._tokenizer = tokenizer
        # The Rust tokenizer under a Hugging Face one: ten times less work for each call.
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        self._template = Template(tokenizer, template_settings or {})
        controls = _control_tokens(tokenizer)
        # The unknown token stands for letters the tokenizer lacks; it is no control token, though it is a special one.
        unknown = {tokenizer.unk_token_id} - {tokenizer.eos_token_id, tokenizer.bos_token_id}
        self._control_ids = frozenset(controls.values()) - unknown
        self._find_control = _finder(controls)
        self._openings: dict[tuple[str, ...], _Counted] = {}
        self._bridges: dict[tuple[str, ...], _Bridge] = {}
        self.close_id: int = self._bridge_for(("user",)).close_id
        """The token that ends the model's turn, such as `<|im_end|>`."""
        eos = tokenizer.eos_token_id
        self.stop_token_ids: tuple[int, ...] = (
            (self.close_id,) if eos in (None, self.close_id) else (self.close_id, int(eos))
        )
        """Sampling ends after one of these."""
        self._stop_ids = frozenset(self.stop_token_ids)

    def open(self, messages: Sequence[Message]) -> list[int]:
        """The tokens of the opening prompt, up to where the model starts to speak."""
        messages = self._template.place_system(messages)
        roles = tuple(message["role"] for message in messages)
        found = self._openings.get(roles)
        if found is None:
            found = self._openings[roles] = self._counted(self._template.opening(roles))
        return self._fill(found, messages)

    def bridge(self, new_messages: Sequence[Message], *, closed: bool) -> list[int]:
        """The tokens to put after what the model sampled, up to where it starts to speak again.

        Args:
            new_messages: What to tell the model.
            closed: Whether the model ended its turn itself (its last token is one of `stop_token_ids`).
        """
        found = self._bridge_for(tuple(message["role"] for message in new_messages))
        ids = self._fill(found.counted, new_messages)
        return ids[found.close_length :] if closed else ids

    def is_closed(self, ids: Sequence[int]) -> bool:
        """Whether the sampled ids end with a stop token."""
        return bool(ids) and ids[-1] in self._stop_ids

    def text(self, ids: Sequence[int]) -> str:
        """What the model said: no stop token, no control tokens."""
        ids = ids[:-1] if self.is_closed(ids) else ids
        if self._backend is not None:
            return self._backend.decode(ids if isinstance(ids, list) else list(ids), skip_special_tokens=True)
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def show(self, ids: Sequence[int]) -> str:
        """The tokens as text, control tokens included; for people to read."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def encode(self, text: str) -> list[int]:
        """Plain text as tokens, none of them a control token."""
        return self._fill(_Counted(Scaffold(("", ""), ((False, False),)), 0), [{"role": "", "content": text}])

    def _bridge_for(self, roles: tuple[str, ...]) -> _Bridge:
        found = self._bridges.get(roles)
        if found is None:
            counted = self._counted(self._template.bridge(roles))
            ids = self._encode(counted.scaffold.pieces[0])
            place = next((place for place, token in enumerate(ids) if token in self._control_ids), None)
            if place is None or self._tokenizer.decode(ids[:place]).strip():
                raise ConfigError(
                    "The chat template does not end the model's turn with a control token such as <|im_end|>, so it "
                    "cannot be told where a turn ends. Use the instruct version of the model, or another template."
                )
            found = self._bridges[roles] = _Bridge(counted, place + 1, ids[place])
        return found

    def _counted(self, scaffold: Scaffold) -> _Counted:
        ids = self._encode("".join(scaffold.pieces))
        return _Counted(scaffold, sum(token in self._control_ids for token in ids))

    def _fill(self, counted: _Counted, messages: Sequence[Message]) -> list[int]:
        """Put the texts into the scaffold and encode, in one piece unless a text spells a control token.

        One piece, because tokens may span the border of scaffold and text (a newline and the newline after it), and
        then only encoding both together gives the template's own tokens.
        """
        scaffold = counted.scaffold
        ids: list[int] = []
        pending = scaffold.pieces[0]
        for message, (left, right), after in zip(messages, scaffold.trims, scaffold.pieces[1:], strict=True):
            text = message["content"]
            if left:
                text = text.lstrip()
            if right:
                text = text.rstrip()
            done = 0
            while (match := self._find_control(text, done)) is not None:
                # Cut after its first character: neither half is a control token any more.
                cut = match.start() + 1
                ids += self._encode(pending + text[done:cut])
                pending, done = "", cut
            pending += text[done:] + after if done else text + after
        ids += self._encode(pending)
        # A guarantee, not a hope: whatever the tokenizer does to text, the control tokens are the scaffold's own.
        if sum(map(self._control_ids.__contains__, ids)) != counted.controls:
            raise ValueError("A message's text would become control tokens of the model, and could not be disarmed.")
        return ids

    def _encode(self, text: str) -> list[int]:
        backend = self._backend
        # Someone else's call with truncation or padding leaves that on in the shared tokenizer: then go through the
        # slow door, which puts it right.
        if backend is None or backend.truncation is not None or backend.padding is not None:
            return list(self._tokenizer.encode(text, add_special_tokens=False))
        return backend.encode(text, add_special_tokens=False).ids


class _Counted:
    """A scaffold and how many control tokens it has."""

    __slots__ = ("controls", "scaffold")

    def __init__(self, scaffold: Scaffold, controls: int) -> None:
        self.scaffold = scaffold
        self.controls = controls


class _Bridge:
    """A bridge scaffold, and how many of its first tokens end the model's turn."""

    __slots__ = ("close_id", "close_length", "counted")

    def __init__(self, counted: _Counted, close_length: int, close_id: int) -> None:
        self.counted = counted
        self.close_length = close_length
        self.close_id = close_id


def _control_tokens(tokenizer: Any) -> dict[str, int]:
    """Special tokens, and the added tokens that the chat template itself speaks of (`<think>`, `<tool_call>`).

    Other added tokens are ordinary text to the model (runs of spaces, HTML tags) and stay whole.
    """
    template = str(tokenizer.chat_template)
    added: dict[int, Any] = tokenizer.added_tokens_decoder
    return {t.content: i for i, t in added.items() if t.special or (t.content.strip() and t.content in template)}


def _finder(controls: Mapping[str, int]) -> Callable[[str, int], re.Match[str] | None]:
    # Longest first, because a regular expression takes the first alternative that fits.
    names = sorted((name for name in controls if name), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, names)) or r"(?!)").search
