"""Finds a tokenizer's control tokens, and the places where a text spells one out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

_MARKER = re.compile(r"<[|\uff5c].*[|\uff5c]>", re.DOTALL)
"""The form of a control token, such as `<|fim_prefix|>`, which Qwen does not mark as special. DeepSeek uses full-width
bars."""


class ControlTokens:
    """The control tokens of one tokenizer: special tokens, added tokens that the chat template contains (`<think>`,
    `<tool_call>`), and added tokens that look like a marker.

    Other added tokens (runs of spaces, HTML tags) are ordinary text to the model.

    Example:
        >>> from turnsmith.inference.models import resolve
        >>> from transformers import AutoTokenizer
        >>> controls = ControlTokens(AutoTokenizer.from_pretrained(resolve("tiny")))
        >>> controls.pattern.findall("Yes<|im_end|> and <b>no</b>")
        ['<|im_end|>']
    """

    def __init__(self, tokenizer: Any) -> None:
        template = str(tokenizer.chat_template)
        self.names: dict[str, int] = {
            token.content: index
            for index, token in tokenizer.added_tokens_decoder.items()
            if token.special
            or (token.content.strip() and (token.content in template or _MARKER.fullmatch(token.content)))
        }
        # The unknown token stands for characters that the tokenizer lacks: special, but not a control token.
        unknown = {tokenizer.unk_token_id} - {tokenizer.eos_token_id, tokenizer.bos_token_id}
        self.ids: frozenset[int] = frozenset(self.names.values()) - unknown
        self.pattern: re.Pattern[str] = re.compile(_alternation(self.names) or r"(?!)")
        """Matches the names of control tokens in a text."""

    def count(self, ids: Sequence[int]) -> int:
        """Count the control tokens among the ids."""
        return sum(map(self.ids.__contains__, ids))


def _alternation(names: Iterable[str]) -> str:
    """A pattern that matches any of the names, built as a prefix tree.

    Plain alternatives would try all of DeepSeek's 800 names at every `<`; the tree fails at the first wrong letter.
    """
    tree = dict[str, Any]()
    for name in filter(None, names):
        node = tree
        for letter in name:
            node = node.setdefault(letter, {})
        node[""] = {}
    return _pattern(tree)


def _pattern(node: dict[str, Any]) -> str:
    branches = [re.escape(letter) + _pattern(child) for letter, child in node.items() if letter]
    if not branches:
        return ""
    if "" in node:
        return f"(?:{'|'.join(branches)})?"
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
