"""The sizes of a model, read from its config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from turnsmith.check.plan.cpu import shape_of
from turnsmith.config import ConfigStore
from turnsmith.errors import ConfigError
from turnsmith.inference.models.shape import ModelShape

_SIZES = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 96, "n_routed_experts": 8, "n_shared_experts": 1}
_MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma2": {},
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96},
    "glm4_moe": {**_EXPERTS, "first_k_dense_replace": 1},
}


@pytest.mark.parametrize(("kind", "more"), _MODELS.items())
def test_a_model_has_as_many_parameters_as_its_shape_says(kind: str, more: dict[str, Any], tmp_path: Path) -> None:
    config = AutoConfig.for_model(kind, **_SIZES, num_key_value_heads=4, vocab_size=2000, **more)
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shape = ModelShape.of_model(str(tmp_path))
    assert shape.parameters == pytest.approx(sum(one.numel() for one in model.parameters()), rel=0.005)
    assert (shape.active < shape.parameters) is bool(more)


def test_what_a_config_leaves_out_is_a_default_of_its_class(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "gemma2", **_SIZES, "vocab_size": 2000}))
    tied = ModelShape.of_model(str(tmp_path)).parameters
    file.write_text(json.dumps({"model_type": "gemma2", **_SIZES, "vocab_size": 2000, "tie_word_embeddings": False}))
    assert ModelShape.of_model(str(tmp_path)).parameters == tied + 2000 * 512


def test_a_config_that_cannot_be_read_is_an_error_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "not-yet-known", **_SIZES}))
    with pytest.raises(ConfigError, match=r"The config\.json of .* cannot be read"):
        ModelShape.of_model(str(tmp_path))
    asked: list[bool] = []

    def load(path: str, *, trust_remote_code: bool) -> Any:
        asked.append(trust_remote_code)
        raise OSError("not here")

    monkeypatch.setattr(AutoConfig, "from_pretrained", load)
    config = ConfigStore()
    config.model.local_path, config.model.trust_remote_code = str(tmp_path), True
    with pytest.raises(ConfigError):
        shape_of(config)
    assert asked == [True]
