"""Fused log-probs on GPUs without flash-attn: for which models, and what says why not for the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from turnsmith.config import ConfigStore
from turnsmith.config_sources import apply_overrides
from turnsmith.errors import ConfigError
from turnsmith.trainer.config import log_probs
from turnsmith.trainer.config.check import run_header, verl_config
from turnsmith.trainer.config.log_probs import (
    FUSED,
    FUSED_FAMILIES,
    PACKED_FAMILIES,
    forward_keys,
    padded_because,
    plain_because,
)
from turnsmith.trainer.config.to_verl import attention_keys

MODEL = "actor_rollout_ref.model"
LEFT_OUT = "which verl's fused forward leaves out"


def settings(folder: Path, of_model: dict[str, Any], *overrides: str) -> ConfigStore:
    (folder / "config.json").write_text(json.dumps(of_model))
    return apply_overrides(ConfigStore(), [f"model.local_path={folder}", "model.device=cuda", *overrides])


# What the config.json of each model says about its family and its logits.
REAL = {
    "Qwen/Qwen2.5-7B-Instruct": ({"model_type": "qwen2"}, ""),
    "Qwen/Qwen3-8B": ({"model_type": "qwen3"}, ""),
    "Qwen/Qwen3-30B-A3B": ({"model_type": "qwen3_moe", "output_router_logits": False}, ""),
    "meta-llama/Llama-3.1-8B-Instruct": ({"model_type": "llama"}, ""),
    "HuggingFaceTB/SmolLM2-135M-Instruct": ({"model_type": "llama", "tie_word_embeddings": True}, ""),
    "HuggingFaceTB/SmolLM3-3B": ({"model_type": "smollm3"}, ""),
    "mistralai/Mistral-7B-Instruct-v0.3": ({"model_type": "mistral"}, ""),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": ({"model_type": "mixtral"}, ""),
    "google/gemma-7b-it": ({"model_type": "gemma"}, ""),
    "google/gemma-3-1b-it": ({"model_type": "gemma3_text", "final_logit_softcapping": None}, ""),
    "microsoft/Phi-4-mini-instruct": ({"model_type": "phi3"}, ""),
    "zai-org/GLM-4-9B-0414": ({"model_type": "glm4"}, ""),
    "zai-org/GLM-4.5-Air": ({"model_type": "glm4_moe"}, ""),
    "deepseek-ai/DeepSeek-V3": ({"model_type": "deepseek_v3", "auto_map": {}}, ""),
    "openai/gpt-oss-20b": ({"model_type": "gpt_oss"}, ""),
    "allenai/OLMo-2-1124-7B": ({"model_type": "olmo2"}, ""),
    # What comes out of lm_head is changed.
    "google/gemma-2-9b-it": (
        {"model_type": "gemma2", "final_logit_softcapping": 30.0},
        f"models of type gemma2 cap their logits, {LEFT_OUT}",
    ),
    "microsoft/phi-2": ({"model_type": "phi"}, f"models of type phi add a bias to their logits, {LEFT_OUT}"),
    "CohereLabs/c4ai-command-r7b-12-2024": (
        {"model_type": "cohere2", "logit_scale": 0.25},
        f"models of type cohere2 scale their logits, {LEFT_OUT}",
    ),
    "a llama with Granite's setting": (
        {"model_type": "llama", "logits_scaling": 8.0},
        f"the model has logits_scaling=8.0, {LEFT_OUT}",
    ),
    "a gemma3_text with a cap": (
        {"model_type": "gemma3_text", "final_logit_softcapping": 30.0},
        f"the model has final_logit_softcapping=30.0, {LEFT_OUT}",
    ),
    # For images too, or unheard of.
    "google/gemma-3-4b-it": (
        {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}},
        "models of type gemma3 were not compared with verl's fused forward",
    ),
    "moonshotai/Kimi-VL-A3B-Instruct": (
        {"model_type": "kimi_vl"},
        "verl has no fused forward for models of type kimi_vl",
    ),
    "a family of tomorrow": (
        {"model_type": "tomorrow"},
        "models of type tomorrow were not compared with verl's fused forward",
    ),
}


@pytest.mark.parametrize("name", REAL)
def test_a_gpu_run_without_flash_attn_takes_fused_log_probs_where_the_family_allows_it(
    name: str, tmp_path: Path
) -> None:
    of_model, reason = REAL[name]
    config = settings(tmp_path, of_model)
    assert plain_because(config) == reason
    said = f"plain log-probs: {reason}" if reason else "fused log-probs"
    padded = padded_because(config)
    assert bool(padded) is (of_model["model_type"] not in PACKED_FAMILIES)
    assert forward_keys(config) == {FUSED: reason == ""} | (attention_keys("sdpa") if padded else {})
    said += f", padded episodes: {padded}" if padded else ""
    assert run_header(config, "Game").endswith(f" · vllm on cuda, {said}")


def test_packed_attention_that_was_not_compared_is_refused(tmp_path: Path) -> None:
    config = settings(tmp_path, {"model_type": "qwen3_next"}, "model.attn_implementation=packed_sdpa")
    with pytest.raises(
        ConfigError, match=r"packed_sdpa: models of type qwen3_next were not compared with it\. Use sdpa"
    ):
        verl_config(config)


def test_verl_is_given_the_choice(tmp_path: Path) -> None:
    theirs = verl_config(settings(tmp_path, {"model_type": "qwen3"}))
    model = theirs.actor_rollout_ref.model
    assert (model.use_fused_kernels, model.fused_kernel_options.impl_backend) == (True, "torch")
    assert theirs.critic.model.use_fused_kernels is False  # a critic has no lm_head


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("value", [True, False])
def test_what_the_user_sets_wins(value: bool, device: str, tmp_path: Path) -> None:
    # A family that was not compared, too: who knows it better may have it.
    config = settings(tmp_path, {"model_type": "tomorrow"}, f"model.device={device}", f"verl.{FUSED}={value}")
    assert verl_config(config).actor_rollout_ref.model.use_fused_kernels is value


def test_elsewhere_log_probs_are_plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings(tmp_path, {"model_type": "qwen3"}, "model.device=cpu")
    assert plain_because(config).startswith("on a CPU, ")
    assert forward_keys(config) == {FUSED: False}
    assert run_header(config, "Game").endswith(" · transformers on cpu")
    monkeypatch.setattr("turnsmith.inference.auto.has_flash_attention", lambda: True)
    config = settings(tmp_path, {"model_type": "qwen3"})
    assert plain_because(config) == "flash attention comes with kernels of its own"


@pytest.mark.parametrize(
    ("of_model", "overrides", "sentence"),
    [
        ({"model_type": "gemma2"}, [f"verl.{FUSED}=true"], "would train on wrong log-probs: models of type gemma2 cap"),
        (
            {"model_type": "llama"},
            [f"verl.{FUSED}=true", f"verl.{MODEL}.target_modules=[q_proj,lm_head]"],
            "wrong log-probs: verl's fused forward leaves an adapter of lm_head out",
        ),
        ({"model_type": "llama"}, [f"verl.{MODEL}.fused_kernel_options.impl_backend=cutlass"], "use torch"),
        (
            {"model_type": "llama"},
            ["model.device=cpu", f"verl.{FUSED}=true", f"verl.{MODEL}.fused_kernel_options.impl_backend=triton"],
            "use torch, or on GPUs triton",
        ),
        (
            {"model_type": "phi"},
            [f"verl.{MODEL}.fused_kernel_options.impl_backend=torch"],
            f"has no effect without verl.{FUSED}=true",
        ),
        (
            {"model_type": "llama"},
            ["verl.actor_rollout_ref.actor.entropy_checkpointing=true"],
            "has no effect with fused log-probs, which never hold all logits",
        ),
        ({"model_type": "llama"}, ["verl.critic.model.use_fused_kernels=true"], "breaks the critic"),
    ],
)
def test_settings_of_verl_that_contradict_each_other_are_refused(
    of_model: dict[str, Any], overrides: list[str], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        verl_config(settings(tmp_path, of_model, *overrides))


def test_an_adapter_of_the_head_is_trained_with_plain_log_probs(tmp_path: Path) -> None:
    config = settings(tmp_path, {"model_type": "llama"}, f"verl.{MODEL}.target_modules=.*(q_proj|lm_head)")
    assert plain_because(config) == "verl's fused forward leaves an adapter of lm_head out"


def test_every_family_of_the_table_is_one_that_transformers_loads() -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    assert set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) >= FUSED_FAMILIES


def test_a_hub_that_does_not_answer_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def urlopen(request: object, timeout: float) -> object:
        asked.append(request.full_url)  # type: ignore[attr-defined]
        raise TimeoutError("no answer")

    monkeypatch.setattr(log_probs, "urlopen", urlopen)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    config = apply_overrides(ConfigStore(), ["model.device=cuda", "model.model_name=nobody/nothing-of-this-name"])
    assert "cannot be read here (no answer)" in padded_because(config)
    assert "cannot be read here (no answer)" in plain_because(config)
    assert len(asked) == 1
