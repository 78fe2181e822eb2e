"""LoRA adapters that cannot be trained are refused before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from turnsmith.config import ConfigStore
from turnsmith.config_sources import apply_overrides
from turnsmith.errors import ConfigError
from turnsmith.trainer.config.check import verl_config

TARGETS = "verl.actor_rollout_ref.model.target_modules"
MIXTURES: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3-30B-A3B": {"model_type": "qwen3_moe", "num_experts": 128},
    "mistralai/Mixtral-8x7B-Instruct-v0.1": {"model_type": "mixtral", "num_local_experts": 8},
    "deepseek-ai/DeepSeek-V3": {"model_type": "deepseek_v3", "n_routed_experts": 256},
    "one that also sees": {"model_type": "qwen3_vl_moe", "text_config": {"num_experts": 128}},
}


def settings(folder: Path, of_model: dict[str, Any], *overrides: str) -> ConfigStore:
    (folder / "config.json").write_text(json.dumps(of_model))
    return apply_overrides(ConfigStore(), [f"model.local_path={folder}", *overrides])


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("targets", ["", f"{TARGETS}=all-linear", f"{TARGETS}=[q_proj,up_proj]"])
def test_an_adapter_of_experts_is_refused(name: str, targets: str, tmp_path: Path) -> None:
    config = settings(tmp_path, MIXTURES[name], "model.lora_rank=8", *filter(None, [targets]))
    with pytest.raises(ConfigError, match=r"model.lora_rank=8: .* is a mixture of experts, .*Adapt its attention"):
        verl_config(config)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("model.lora_rank=0", "model.lora_merge=false needs model.lora_rank, inference.backend=vllm, and"),
        ("inference.backend=transformers", "model.lora_merge=false needs model.lora_rank, inference.backend=vllm, and"),
        (
            "training.schedule=separate_async ray.rollout_gpus_per_node=1",
            "another training.schedule than separate_async, which sends whole models: leave it out",
        ),
        ("players.them=self", "model.lora_merge=true, or let the first model play"),
    ],
)
def test_an_adapter_that_the_engine_cannot_take_is_refused(wrong: str, reason: str, tmp_path: Path) -> None:
    given = ["model.lora_rank=8", "model.lora_merge=false", "inference.backend=vllm"]
    verl_config(settings(tmp_path, {"model_type": "qwen3"}, *given))
    with pytest.raises(ConfigError, match=reason):
        verl_config(settings(tmp_path, {"model_type": "qwen3"}, *given, *wrong.split()))


def test_an_adapter_of_a_mixture_of_experts_is_merged(tmp_path: Path) -> None:
    chosen = ["model.lora_rank=8", "model.lora_merge=false", "inference.backend=vllm", f"{TARGETS}=[q_proj]"]
    with pytest.raises(ConfigError, match=r"is a mixture of experts, .*alone \(model.lora_merge=true, "):
        verl_config(settings(tmp_path, MIXTURES["Qwen/Qwen3-30B-A3B"], *chosen))


@pytest.mark.parametrize(
    ("of_model", "overrides"),
    [
        (MIXTURES["Qwen/Qwen3-30B-A3B"], ["model.lora_rank=0"]),
        (MIXTURES["Qwen/Qwen3-30B-A3B"], ["model.lora_rank=8", f"{TARGETS}=[q_proj,v_proj]"]),
        (MIXTURES["Qwen/Qwen3-30B-A3B"], ["model.lora_rank=8", f"{TARGETS}=o_proj"]),
        ({"model_type": "qwen3"}, ["model.lora_rank=8"]),
        ({"model_type": "llama", "num_experts": None, "num_local_experts": 1}, ["model.lora_rank=8"]),
    ],
)
def test_others_are_not(of_model: dict[str, Any], overrides: list[str], tmp_path: Path) -> None:
    verl_config(settings(tmp_path, of_model, *overrides))
