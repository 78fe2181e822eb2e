"""Which tokens steer the model rather than say something, and where a text spells one of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

_MARKER = re.compile(r"<[|\uff5c].*[|\uff5c]>", re.DOTALL)
"""The look of a control token, such as `<|fim_prefix|>`, which Qwen does not mark as special. DeepSeek writes it with
full-width bars."""


class ControlTokens:
    """The control tokens of one tokenizer: special tokens, added tokens that the chat template speaks of (`<think>`,
    `<tool_call>`), and added tokens that look like a marker.

    Other added tokens are ordinary text to the model (runs of spaces, HTML tags) and stay whole.

    Example:
        >>> from turnsmith.models import resolve
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
        # The unknown token stands for letters the tokenizer lacks; it is no control token, though it is a special one.
        unknown = {tokenizer.unk_token_id} - {tokenizer.eos_token_id, tokenizer.bos_token_id}
        self.ids: frozenset[int] = frozenset(self.names.values()) - unknown
        self.pattern: re.Pattern[str] = re.compile(_any_of(self.names) or r"(?!)")
        """Finds the names of control tokens in a text."""

    def count(self, ids: Sequence[int]) -> int:
        """How many of the ids are control tokens."""
        return sum(map(self.ids.__contains__, ids))


def _any_of(names: Iterable[str]) -> str:
    """A pattern for any of the names, as a tree of their letters.

    A list of alternatives would try all of DeepSeek's 800 names at every `<`; the tree fails at the first wrong letter.
    """
    tree = dict[str, Any]()
    for name in filter(None, names):
        node = tree
        for letter in name:
            node = node.setdefault(letter, {})
        node[""] = {}
    return _pattern(tree)


def _pattern(node: dict[str, Any]) -> str:
    ways = [re.escape(letter) + _pattern(child) for letter, child in node.items() if letter]
    if not ways:
        return ""
    if "" in node:
        return f"(?:{'|'.join(ways)})?"
    return ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"
