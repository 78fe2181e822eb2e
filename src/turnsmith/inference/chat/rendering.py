"""From messages to tokens, without ever turning what the model said back into tokens.

A conversation opens with one rendered prompt. After each turn of the model only the *bridge* is made: the end of its
turn if it did not end it itself, the new messages, and the start of its next turn. The history is never rendered again,
so a turn costs the same at token 100 and at token 100,000, and the model's own tokens stay exactly as sampled.

Why not the bridges of the `renderers` package (0.1.12): `DefaultRenderer` has none; a hand-written one, such as
Qwen3's, has none either when a user message follows, unless it is told to keep all thinking, and then encodes
observations with control tokens on, so that `<|im_start|>` in an observation becomes a real turn marker. They also copy
the whole history at each turn. `tests/unit/inference/test_renderers.py` shows it, and that the tokens are the same
where both can do it; `test_chat_families.py` shows the forged tokens on real tokenizers, by its own `is_content`.
The bridge here is read off the model's own chat template once, with placeholders for the texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from turnsmith.errors import ConfigError
from turnsmith.inference.chat.control_tokens import ControlTokens
from turnsmith.inference.chat.template import ChatTemplate, MaskedTools, Message, Slot, TemplatePieces, ToolSchema
from turnsmith.text import replace_surrogates

__all__ = ["Chat", "Message", "ToolSchema"]

_PROBES = ("", "a", " a ", "\n\n a\t\n\n", "\u00e9 e\u0301 \ufb01", "\u25811<")
"""Texts that show whether a tokenizer looks beyond a control token."""
_MOST_FRAMES = 256
"""How many frames are kept; a run needs a handful, unless each episode has tools of its own."""


class Chat:
    """The chat side of one tokenizer. Made once a process and shared by all episodes; safe to use from many tasks.

    Two properties hold for every template it accepts (it refuses the others when it is made):

    - `open(messages) + sampled + bridge(new)` are the tokens of the template's own rendering, as long as the sampled
      tokens are the ones the tokenizer would choose for the same text;
    - no text of a message or of a tool's description ever becomes a control token, so that none can forge a turn.

    Example:
        >>> from turnsmith.models import resolve
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
        self._template = ChatTemplate(tokenizer, template_settings or {})
        self._controls = ControlTokens(tokenizer)
        self._openings: dict[tuple[tuple[str, ...], str], _Frame] = {}
        self._bridges: dict[tuple[str, ...], _Frame] = {}
        self._plain = _Frame((("", None, ""), ("", None, "")), (Slot(),), 0)
        self._known: dict[str, list[int]] = {}
        self.close_id: int = self._bridge_frame(("user",)).close_id
        """The token that ends the model's turn, such as `<|im_end|>`."""
        # Llama 3 may end a turn that calls a tool with a token of its own.
        ends = (self.close_id, tokenizer.eos_token_id, self._controls.names.get("<|eom_id|>"))
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys(int(end) for end in ends if end is not None))
        """Sampling ends after one of these."""
        self._stop_ids = frozenset(self.stop_token_ids)
        self.renders_tools: bool = self._template.renders_tools
        """Whether the template tells the model of the tools given to `open`. If not, put them in the system prompt."""
        self.takes_tool_role: bool = self._template.takes_tool_role and self._closes_alike(("tool",))
        """Whether the template has a frame for the results of tools. If not, the user tells them: `Tool result ...`."""

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSchema] | None = None) -> list[int]:
        """The tokens of the opening prompt, up to where the model starts to speak.

        Args:
            messages: What to tell the model.
            tools: Tools as OpenAI writes them, for the template to show; left out unless `renders_tools`.
        """
        messages = self._template.place_system(messages)
        roles = tuple(message["role"] for message in messages)
        # The template may write them as it likes, but JSON tells one list of tools from another.
        shown = json.dumps(tools, ensure_ascii=False) if tools and self.renders_tools else ""
        found = self._openings.get((roles, shown))
        if found is None:
            masked = self._masked(shown) if shown else None
            found = self._cut(self._framed(roles, lambda roles: self._counted(self._template.opening(roles, masked))))
            _keep(self._openings, (roles, shown), found)
        return self._fill(found, messages)

    def bridge(self, new_messages: Sequence[Message], *, closed: bool) -> list[int]:
        """The tokens to put after what the model sampled, up to where it starts to speak again.

        Args:
            new_messages: What to tell the model. Those of role `tool` are results of tools, and may have a `name`.
            closed: Whether the model ended its turn itself (its last token is one of `stop_token_ids`).
        """
        roles = tuple(message["role"] for message in new_messages)
        found = self._bridges.get(roles)
        if found is None:
            found = self._cut(self._framed(roles, self._bridge_frame))
            _keep(self._bridges, roles, found)
        ids = self._fill(found, new_messages)
        return ids[found.close_length :] if closed else ids

    def is_closed(self, ids: Sequence[int]) -> bool:
        """Whether the sampled ids end with a stop token."""
        return bool(ids) and ids[-1] in self._stop_ids

    def text(self, ids: Sequence[int], *, keep_controls: bool = False) -> str:
        """What the model said, without the stop token at the end.

        Special tokens are left out too, unless `keep_controls`. The marks of tool calls stay where the tokenizer does
        not call them special, as in Qwen and DeepSeek; for Llama's `<|python_tag|>` they must be kept.
        """
        ids = ids[:-1] if self.is_closed(ids) else ids
        decode = self._tokenizer.decode if self._backend is None else self._backend.decode
        return decode(ids if isinstance(ids, list) else list(ids), skip_special_tokens=not keep_controls)

    def show(self, ids: Sequence[int]) -> str:
        """The tokens as text, control tokens included; for people to read."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def encode(self, text: str) -> list[int]:
        """Plain text as tokens, none of them a control token."""
        return self._fill(self._plain, [{"role": "", "content": text}])

    def _framed(self, roles: tuple[str, ...], make: Callable[[tuple[str, ...]], _Frame]) -> _Frame:
        """A frame for these roles; where the template has none for the results of tools, one in which the user tells
        them.
        """
        if "tool" not in roles:
            return make(roles)
        if self.takes_tool_role:
            try:
                return make(roles)
            except ConfigError:  # some allow tool results, but not with other messages around them
                pass
        told = _told_by_user([{"role": role, "content": ""} for role in roles])
        return replace(make(tuple(message["role"] for message in told)), told_by_user=True)

    def _bridge_frame(self, roles: tuple[str, ...]) -> _Frame:
        found = self._counted(self._template.bridge(roles))
        ids = self._encode(found.pieces[0][0])
        place = next((place for place, token in enumerate(ids) if token in self._controls.ids), None)
        if place is None or self._tokenizer.decode(ids[:place]).strip():
            raise ConfigError(
                "The chat template does not end the model's turn with a control token such as <|im_end|>, so it "
                "cannot be told where a turn ends. Use the instruct version of the model, or another template."
            )
        return replace(found, close_length=place + 1, close_id=ids[place])

    def _closes_alike(self, roles: tuple[str, ...]) -> bool:
        try:
            return self._bridge_frame(roles).close_id == self.close_id
        except ConfigError:
            return False

    def _masked(self, shown: str) -> MaskedTools:
        masked = MaskedTools(shown, self._controls.pattern)
        # The frame's control tokens are counted with this text in it, so it must have none itself.
        if self._controls.count(self._encode(masked.text)):
            raise ValueError("A tool's text would become control tokens of the model, and could not be disarmed.")
        return masked

    def _counted(self, scaffold: TemplatePieces) -> _Frame:
        controls = self._controls.count(self._encode("".join(scaffold.pieces)))
        return _Frame(tuple((piece, None, "") for piece in scaffold.pieces), scaffold.slots, controls)

    def _cut(self, frame: _Frame) -> _Frame:
        """The frame with its fixed text encoded once and for all, as far as it lies beyond a control token.

        A tokenizer cuts at control tokens before it does anything else, so what stands beyond one has no effect on the
        text. Where it has (some eat the white space beside them) the frame stays in one piece.
        """
        last = len(frame.pieces) - 1
        pieces: list[_Piece] = []
        for place, (text, _, _) in enumerate(frame.pieces):
            found = list(self._controls.pattern.finditer(text))
            if found:
                start, end = 0 if place == 0 else found[0].start(), len(text) if place == last else found[-1].end()
                pieces.append((text[:start], self._encode(text[start:end]), text[end:]))
            else:
                pieces.append((text, None, ""))
        cut = replace(frame, pieces=tuple(pieces))
        for probe in _PROBES:
            texts = [{"role": "", "content": probe}] * len(frame.slots)
            whole, parts = (self._fill(replace(one, told_by_user=False), texts) for one in (frame, cut))
            if whole != parts:
                return frame
        return cut

    def _fill(self, frame: _Frame, messages: Sequence[Message]) -> list[int]:
        """Put the texts between the fixed pieces and encode, together with all that touches them.

        Together, because tokens may span the border of piece and text (a newline and the newline after it), and then
        only encoding both at once gives the template's own tokens. A text that spells a control token is cut there.
        """
        if frame.told_by_user:
            messages = _told_by_user(messages)
        find = self._controls.pattern.search
        texts = iter(messages)
        pending, fixed, tail = frame.pieces[0]
        ids: list[int] = []
        if fixed is not None:
            ids, pending = [*fixed], tail
        for slot, (head, fixed, tail) in zip(frame.slots, frame.pieces[1:], strict=True):
            message = next(texts) if slot.fixed is None else None
            text = slot.fit(message["content"]) if message else slot.fixed or ""
            done = 0
            while (match := find(text, done)) is not None:
                # Cut after its first character: neither half is a control token any more.
                cut = match.start() + 1
                ids += self._encode(pending + text[done:cut])
                pending, done = "", cut
            pending += text[done:] + head if done else text + head
            if fixed is not None:
                ids += self._remember(pending) if message and message["role"] == "system" else self._encode(pending)
                ids += fixed
                pending = tail
        if pending:
            ids += self._encode(pending)
        # A guarantee, not a hope: whatever the tokenizer does to text, the control tokens are the scaffold's own.
        if self._controls.count(ids) != frame.controls:
            raise ValueError("A message's text would become control tokens of the model, and could not be disarmed.")
        return ids

    def _remember(self, text: str) -> list[int]:
        """Encode a text that most episodes have in common, once."""
        found = self._known.get(text)
        if found is None:
            found = self._encode(text)
            _keep(self._known, text, found)
        return found

    def _encode(self, text: str) -> list[int]:
        backend = self._backend
        # Someone else's call with truncation or padding leaves that on in the shared tokenizer: then go through the
        # slow door, which puts it right.
        if backend is None or backend.truncation is not None or backend.padding is not None:
            return list(self._tokenizer.encode(replace_surrogates(text), add_special_tokens=False))
        try:
            return backend.encode(text, add_special_tokens=False).ids
        except TypeError:  # half a surrogate pair is no text to it
            return backend.encode(replace_surrogates(text), add_special_tokens=False).ids


_Piece = tuple[str, Sequence[int] | None, str]
"""Fixed text between two texts: what touches the one before, the tokens of what touches neither, what touches the next.
Without tokens in the middle it is all in the first."""


@dataclass(frozen=True, slots=True)
class _Frame:
    """A scaffold and what has to be known to fill it."""

    pieces: tuple[_Piece, ...]
    slots: tuple[Slot, ...]
    controls: int
    """How many control tokens it has."""
    close_length: int = 0
    """How many of its first tokens end the model's turn."""
    close_id: int = -1
    told_by_user: bool = False
    """Whether the results of tools become a message of the user."""


def _told_by_user(messages: Sequence[Message]) -> list[Message]:
    """Results of tools as messages of the user, joined with those beside them: many templates want roles in turn."""
    told: list[Message] = []
    joins = False  # whether the last message holds a result, so that what the user says next goes into it
    for message in messages:
        role, text = message["role"], message["content"]
        is_tool = role == "tool"
        if is_tool:
            name = message.get("name")
            role, text = "user", f"Tool result ({name}): {text}" if name else f"Tool result: {text}"
        if role == "user" and (joins or is_tool) and told and told[-1]["role"] == "user":
            text = f"{told.pop()['content']}\n\n{text}"
            is_tool = True
        told.append({"role": role, "content": text})
        joins = is_tool
    return told


def _keep(kept: dict[Any, Any], key: Any, value: Any) -> None:
    if len(kept) >= _MOST_FRAMES:
        kept.clear()
    kept[key] = value
