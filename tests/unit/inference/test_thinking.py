"""`inference.thinking`: the template's own switch, in the opening and in every turn; sampled thinking stays."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import AutoTokenizer

from turnsmith.cli.engine import open_engine
from turnsmith.config import ConfigStore
from turnsmith.errors import ConfigError
from turnsmith.inference.chat import Chat, thinking_settings
from turnsmith.inference.model_check import ModelCheck
from turnsmith.inference.models import resolve

EMPTY = "<think>\n\n</think>\n\n"


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_each_turn_of_a_qwen3_begins_with_an_empty_block_if_it_should_not_think(real_tokenizer):
    tokenizer = real_tokenizer("qwen3")
    silent = Chat(tokenizer, template_settings=thinking_settings(tokenizer, False))
    for ids in (silent.open(user("Hi")), silent.bridge(user("Go on"), closed=True)):
        assert silent.show(ids).endswith(f"<|im_start|>assistant\n{EMPTY}")
    default = Chat(tokenizer)
    for thinking in (None, True):
        chat = Chat(tokenizer, template_settings=thinking_settings(tokenizer, thinking))
        assert chat.open(user("Hi")) == default.open(user("Hi")), "it thinks unless told otherwise"
        assert chat.show(chat.bridge(user("Go on"), closed=True)).endswith("<|im_start|>assistant\n")


def test_thinking_of_earlier_turns_stays_although_the_template_would_drop_it(real_tokenizer):
    tokenizer = real_tokenizer("qwen3")
    chat = Chat(tokenizer, template_settings=thinking_settings(tokenizer, True))
    sampled = [*tokenizer.encode("<think>\nTwo.\n</think>\n\n2", add_special_tokens=False), chat.close_id]
    ids = [*chat.open(user("1 + 1?")), *sampled, *chat.bridge(user("And 2 + 2?"), closed=True)]
    assert "Two." in chat.show(ids)
    answered = [*user("1 + 1?"), {"role": "assistant", "content": "<think>\nTwo.\n</think>\n\n2"}, *user("And 2 + 2?")]
    assert "Two." not in tokenizer.apply_chat_template(answered, tokenize=False, add_generation_prompt=True)


@pytest.mark.parametrize("name", ["enable_thinking", "thinking"])
def test_the_switch_goes_by_the_name_that_the_template_has(name):
    tokenizer = SimpleNamespace(chat_template=f"{{% if {name} %}}{{% generation %}}x{{% endgeneration %}}{{% endif %}}")
    assert thinking_settings(tokenizer, False) == {name: False}


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages }}",
        "I am thinking {% set thinking = true %}{{ thinking }} {# enable_thinking #}",
        "{% for message in messages %}{{ message.thinking }}{% continue %}{% endfor %}",
        None,
    ],
)
def test_a_template_without_a_switch_is_told_in_words(template):
    tokenizer = SimpleNamespace(chat_template=template)
    assert thinking_settings(tokenizer, None) == {}
    with pytest.raises(ConfigError, match=r"inference\.thinking=true, but the model's chat template has no"):
        thinking_settings(tokenizer, True)


@pytest.fixture
def thinker(tmp_path: Path) -> ConfigStore:
    """The settings for a tiny model whose template has the switch of Qwen3's."""
    folder = tmp_path / "model"
    shutil.copytree(resolve("tiny"), folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    switch = "{% if add_generation_prompt and enable_thinking is false %}{{ '<think>' }}{% endif %}"
    tokenizer.chat_template += switch
    tokenizer.save_pretrained(folder)
    config = ConfigStore()
    config.model.device, config.model.local_path = "cpu", str(folder)
    return config


@pytest.mark.parametrize("thinking", [None, True, False])
def test_the_setting_reaches_the_engine_of_an_evaluation(thinker: ConfigStore, thinking: bool | None):
    thinker.inference.thinking = thinking
    with open_engine(thinker) as engine:
        assert engine.chat.show(engine.chat.open(user("Hi"))).endswith("<think>") is (thinking is False)


def test_a_model_without_the_switch_is_refused_before_a_run_starts(thinker: ConfigStore):
    thinker.inference.thinking = True
    with pytest.raises(ConfigError, match=r"inference\.thinking=true"), ModelCheck.of(thinker, resolve("tiny")):
        pass
