"""Small tokenizers with the shapes that matter: byte-level, ChatML with thinking and tools, merges across borders."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ADDED = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]


def make_byte_tokenizer(template: str = CHATML, eos: str = "<|im_end|>") -> PreTrainedTokenizerFast:
    """Every byte is a token, and two newlines merge into one token (as they do in real tokenizers)."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    newline = "Ċ"
    vocab = {letter: place for place, letter in enumerate([*alphabet, newline * 2])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[(newline, newline)]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    backend.add_tokens([AddedToken(name, special=False, normalized=False) for name in ADDED])
    made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=eos)
    made.chat_template = template
    return made


@pytest.fixture(scope="session")
def byte_tokenizer() -> Callable[..., PreTrainedTokenizerFast]:
    """Makes byte-level tokenizers: `byte_tokenizer(template, eos)`."""
    return make_byte_tokenizer
