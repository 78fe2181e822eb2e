"""Messages are read back from the tokens of a prompt."""

from __future__ import annotations

import pytest

from turnsmith.errors import ConfigError
from turnsmith.inference.chat.message_reader import MessageReader

SYSTEM = "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe brief.<|im_end|>\n' }}{% endif %}"
MESSAGES = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
ANSWER = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"


def test_the_system_prompt_that_a_template_adds_is_left_out_and_the_users_own_is_kept(byte_tokenizer) -> None:
    reader = MessageReader(byte_tokenizer(SYSTEM + MESSAGES + ANSWER))
    asked = {"role": "user", "content": "Hello"}
    assert reader.read(reader.chat.open([asked])) == [asked]
    own = [{"role": "system", "content": "Be long."}, asked]
    assert reader.read(reader.chat.open(own)) == own


def test_a_template_with_other_marks_is_refused(byte_tokenizer) -> None:
    template = (MESSAGES + ANSWER).replace("<|im_end|>", "<|endoftext|>")
    with pytest.raises(ConfigError, match="needs a tokenizer with a ChatML template"):
        MessageReader(byte_tokenizer(template, "<|endoftext|>"))


def test_a_text_is_read_as_it_was_written(byte_tokenizer) -> None:
    tokenizer = byte_tokenizer(MESSAGES + ANSWER)
    # transformers ignores what it calls a clean-up for tokenizers of this kind, unless they say this.
    tokenizer.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output = True
    reader = MessageReader(tokenizer)
    asked = {"role": "user", "content": "one , two . do n't"}
    assert reader.read(reader.chat.open([asked])) == [asked]
    without_template = [*reader.chat.encode("one"), tokenizer.convert_tokens_to_ids("<|endoftext|>")]
    assert reader.read(without_template) == [{"role": "user", "content": "one<|endoftext|>"}]
