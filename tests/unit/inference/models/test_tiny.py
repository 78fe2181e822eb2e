from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from turnsmith.inference.models import tiny

MESSAGES = [
    {"role": "system", "content": "Guess a number."},
    {"role": "user", "content": "Higher or lower?\nSay `5`."},
]
RENDERED = "<|im_start|>system\nGuess a number.<|im_end|>\n<|im_start|>user\nHigher or lower?\nSay `5`.<|im_end|>\n"


@pytest.fixture(scope="module")
def tokenizer(tiny_folder: str) -> Any:
    return AutoTokenizer.from_pretrained(tiny_folder)


def test_it_generates_in_transformers(tiny_folder: str, tokenizer: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_folder)
    assert model.dtype == torch.float32
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.config.vocab_size == len(tokenizer) < 200
    prompt = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    sampled = model.generate(**prompt, max_new_tokens=8, min_new_tokens=8, do_sample=False)
    assert sampled.shape == (1, prompt["input_ids"].shape[1] + 8)


def test_its_first_words_are_nearly_uniform(tiny_folder: str) -> None:
    """A random model must explore: none of its answers may be likely from the start."""
    model = AutoModelForCausalLM.from_pretrained(tiny_folder)
    with torch.no_grad():
        probabilities = model(torch.arange(model.config.vocab_size)[None]).logits.softmax(-1)
    assert probabilities.min() > 0.001
    assert probabilities.max() < 0.05


def test_the_chat_template_round_trips(tokenizer: Any) -> None:
    ids = tokenizer.apply_chat_template(MESSAGES, return_dict=False)
    assert tokenizer.decode(ids) == RENDERED
    assert tokenizer.apply_chat_template(MESSAGES, tokenize=False) == RENDERED
    assert ids.count(tiny.START_ID) == ids.count(tiny.END_ID) == 2
    opened = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    assert opened[: len(ids)] == ids
    assert tokenizer.decode(opened[len(ids) :]) == "<|im_start|>assistant\n"


def test_one_character_is_one_token(tokenizer: Any) -> None:
    ids = tokenizer.encode(tiny.CHARACTERS)
    assert ids == list(range(len(tiny.SPECIAL_TOKENS), len(tokenizer)))
    assert tokenizer.decode(ids) == tiny.CHARACTERS
    assert tokenizer.encode("a  b") == [tokenizer.encode(character)[0] for character in "a  b"]


def test_other_characters_are_unknown_not_an_error(tokenizer: Any) -> None:
    assert tokenizer.encode("é你") == [tiny.UNKNOWN_ID, tiny.UNKNOWN_ID]


def test_its_special_tokens_are_set(tokenizer: Any) -> None:
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    assert tokenizer.encode("<|im_end|>") == [tiny.END_ID]
    assert tokenizer.encode("hi") == [*map(tokenizer.convert_tokens_to_ids, "hi")], "nothing may be added around a text"


def test_the_same_seed_gives_the_same_weights(tmp_path: Path) -> None:
    before = torch.random.get_rng_state()
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        tiny.build_tiny(tmp_path / name, seed=seed)
    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b
    assert a != c
    assert torch.equal(before, torch.random.get_rng_state())


def test_it_sets_no_sampling_defaults(tiny_folder: str) -> None:
    settings = json.loads((Path(tiny_folder) / "generation_config.json").read_text())
    assert not {"temperature", "top_p", "top_k", "repetition_penalty"} & settings.keys()
