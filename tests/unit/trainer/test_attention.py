"""How the trainer computes attention: with flash-attn where it is, and without it all the same."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Any

import pytest

from turnsmith.config import ConfigStore
from turnsmith.config_sources import apply_overrides
from turnsmith.errors import ConfigError, MissingDependency
from turnsmith.inference.models import resolve
from turnsmith.trainer.config.check import check
from turnsmith.trainer.config.layout import resolve_attention
from turnsmith.trainer.config.to_verl import keys_we_set
from turnsmith.trainer.verl.packed_attention import register

MODELS = ("actor_rollout_ref.model", "critic.model")


def settings(*overrides: str) -> ConfigStore:
    return apply_overrides(ConfigStore(), list(overrides))


@pytest.fixture
def flash_attn(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Makes flash-attn seem installed, or not."""
    real = importlib.metadata.distribution

    def install(there: bool) -> None:
        def distribution(name: str) -> Any:
            return real("pytest" if there and name == "flash-attn" else name)

        monkeypatch.setattr(importlib.metadata, "distribution", distribution)

    return install


def test_a_model_loads_on_a_gpu_machine_without_flash_attn() -> None:
    import transformers

    register()
    keys = keys_we_set(settings("model.device=cuda"))
    for model in MODELS:
        # As verl's HFModelConfig loads it, with its default.
        chosen = keys.get(f"+{model}.override_config.attn_implementation", "flash_attention_2")
        config = transformers.AutoConfig.from_pretrained(resolve("tiny"), attn_implementation=chosen)
        transformers.AutoModelForCausalLM.from_pretrained(resolve("tiny"), config=config)


@pytest.mark.parametrize(
    ("overrides", "there", "attention"),
    [
        (["model.device=cuda"], True, "flash_attention_2"),
        (["model.device=cuda"], False, "packed_sdpa"),
        (["model.device=cuda", "model.dtype=float32"], True, "packed_sdpa"),  # flash attention has no float32
        (["model.device=cpu"], True, "sdpa"),
        (["ray.address=auto"], True, "flash_attention_2"),
        (["model.device=cuda", "model.attn_implementation=eager"], True, "eager"),
        (["ray.address=auto", "model.attn_implementation=flash_attention_2"], False, "flash_attention_2"),
    ],
)
def test_auto_takes_flash_attention_where_it_can(
    overrides: list[str], there: bool, attention: str, flash_attn: Callable[[bool], None]
) -> None:
    flash_attn(there)
    config = settings(*overrides)
    check(config)
    assert resolve_attention(config) == attention
    keys = keys_we_set(config)
    for model in MODELS:
        assert keys[f"+{model}.override_config.attn_implementation"] == attention
        # Episodes that are concatenated without padding would see each other with any other attention.
        assert keys[f"{model}.use_remove_padding"] is (attention in ("flash_attention_2", "packed_sdpa"))


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["model.device=cpu"], "computes on GPUs and in bfloat16 or float16 only, not on cpu in float32"),
        (["model.device=cuda", "model.dtype=float32"], "not on cuda in float32"),
        (["model.device=cuda"], r"needs flash-attn, which is not installed: (uv )?pip install .*\[flash-attn\]"),
    ],
)
def test_flash_attention_that_cannot_be_had_is_refused_before_anything_starts(
    overrides: list[str], sentence: str, flash_attn: Callable[[bool], None]
) -> None:
    flash_attn(False)
    with pytest.raises((ConfigError, MissingDependency), match=sentence):
        check(settings(*overrides, "model.attn_implementation=flash_attention_2"))


def test_sequences_are_only_split_with_flash_attention(flash_attn: Callable[[bool], None]) -> None:
    config = settings("model.device=cuda", "ray.gpus_per_node=2", "model.sequence_parallel_size=2")
    flash_attn(True)
    check(config)
    flash_attn(False)
    with pytest.raises(ConfigError, match="sequence_parallel_size=2 needs flash attention"):
        check(config)
