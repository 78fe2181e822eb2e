"""The pattern of control tokens matches the longest name."""

from __future__ import annotations

from tokenizers import AddedToken

from turnsmith.inference.chat.control_tokens import ControlTokens


def test_a_name_that_begins_with_another_name_is_found_whole(byte_tokenizer) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken(name, special=True) for name in ("<|a|>", "<|a|>b", "<|a|>bcd")])
    pattern = ControlTokens(tokenizer).pattern
    assert pattern.findall("<|a|>bcd <|a|>bc <|a|> <|im_end|>") == ["<|a|>bcd", "<|a|>b", "<|a|>", "<|im_end|>"]
