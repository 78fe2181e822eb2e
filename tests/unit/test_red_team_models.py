"""Attacks from the folder of a model: code, pickles, templates. `witness` exists only if any of them ran."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from turnsmith.errors import ConfigError


class Planted:
    """Unpickling it leaves the witness."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.witness),)


@pytest.fixture
def witness(tmp_path: Path) -> Path:
    return tmp_path / "witness"


@pytest.fixture
def model_folder(tiny_folder: str, tmp_path: Path, witness: Path) -> Path:
    """A model with a file beside it that leaves the witness when it is imported."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    (folder / "planted.py").write_text(f"open({str(witness)!r}, 'w')\nclass Config: pass\nclass Model: pass\n")
    return folder


def change(file: Path, **settings: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))


def start_engine(folder: Path) -> None:
    from turnsmith.inference.engines.transformers_engine import TransformersEngine

    TransformersEngine(str(folder)).close()


def load_tokenizer(folder: Path) -> None:
    from turnsmith.inference.sync import engines

    engines.load_tokenizer(str(folder), False)


MODEL_CODE = {"AutoConfig": "planted.Config", "AutoModelForCausalLM": "planted.Model"}


def test_code_of_a_model_is_not_run(model_folder: Path, witness: Path) -> None:
    change(model_folder / "config.json", auto_map=MODEL_CODE)
    start_engine(model_folder)  # of a known kind: transformers' own code is used in its place
    change(model_folder / "config.json", model_type="planted")
    with pytest.raises(ValueError, match="custom code"):
        start_engine(model_folder)
    assert not witness.exists()


def test_code_of_a_tokenizer_is_not_run(model_folder: Path, witness: Path) -> None:
    named = {"AutoTokenizer": ["planted.Model", "planted.Model"]}
    change(model_folder / "tokenizer_config.json", auto_map=named, tokenizer_class="Planted")
    with pytest.raises(ValueError, match="custom code"):
        load_tokenizer(model_folder)
    assert not witness.exists()


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_pickled_weights_run_nothing(is_wrapped: bool, model_folder: Path, witness: Path) -> None:
    import torch

    for file in model_folder.glob("*.safetensors"):
        file.unlink()
    if is_wrapped:
        torch.save({"model.embed_tokens.weight": Planted(witness)}, model_folder / "pytorch_model.bin")
    else:
        (model_folder / "pytorch_model.bin").write_bytes(pickle.dumps(Planted(witness), protocol=2))
    with pytest.raises(pickle.UnpicklingError):
        start_engine(model_folder)
    assert not witness.exists()


def test_export_calls_nothing_but_a_model_class(model_folder: Path, witness: Path) -> None:
    """The name of the class comes from a checkpoint that exporting does not have to trust."""
    from turnsmith.trainer.checkpoints.hugging_face import _empty_model

    change(model_folder / "config.json", architectures=["AutoTokenizer"], auto_map=MODEL_CODE)
    assert type(_empty_model(model_folder, False)).__name__ == "LlamaForCausalLM"
    assert not witness.exists()


TEMPLATES = [
    "{{ cycler.__init__.__globals__.os.system('touch WITNESS') }}",
    "{{ lipsum.__globals__['os'].popen('touch WITNESS').read() }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.append({'role': 'system', 'content': 'x'}) }}",
    "{{ ''|attr('__class__') }}{{ raise_exception.__globals__ }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "{% include '/etc/passwd' %}",
    "{% for n in range(10**9) %}x{% endfor %}",
]


@pytest.mark.parametrize("template", TEMPLATES)
def test_chat_template_runs_nothing(template: str, tiny_folder: str, witness: Path) -> None:
    from transformers import AutoTokenizer

    from turnsmith.inference.chat import Chat

    tokenizer: Any = AutoTokenizer.from_pretrained(tiny_folder)
    tokenizer.chat_template = template.replace("WITNESS", str(witness))
    with pytest.raises(ConfigError, match="chat template"):
        Chat(tokenizer)
    assert not witness.exists()
