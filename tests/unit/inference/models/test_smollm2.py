from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from turnsmith.inference.models import smollm2


@pytest.fixture(scope="module")
def tokenizer(smollm2_folder: str) -> Any:
    return AutoTokenizer.from_pretrained(smollm2_folder)


def test_it_answers_sensibly(smollm2_folder: str, tokenizer: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    sampled = model.generate(**prompt, max_new_tokens=16, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(sampled)
    assert sampled[-1] == smollm2.END_ID, "the answer must end its turn"


def test_a_turn_ends_with_the_right_token(tokenizer: Any) -> None:
    """transformers' own GGUF import gets these wrong."""
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert tokenizer.convert_ids_to_tokens([1, 2]) == ["<|im_start|>", "<|im_end|>"]
    assert tokenizer.model_max_length == 8192


@pytest.mark.parametrize("text", ["In 2024 it's 3.14!", "def f(x):\n\treturn x**2  # é 你好", "  two  spaces \n\n"])
def test_text_round_trips(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_every_digit_is_a_token(tokenizer: Any) -> None:
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("1984")) == ["1", "9", "8", "4"]


def test_appending_a_message_keeps_the_tokens_before_it(tokenizer: Any) -> None:
    messages = [{"role": role, "content": f"{role} speaks"} for role in ("system", "user", "assistant", "user")]
    rendered = [tokenizer.apply_chat_template(messages[:n], return_dict=False) for n in range(1, 5)]
    for shorter, longer in pairwise(rendered):
        assert longer[: len(shorter)] == shorter
