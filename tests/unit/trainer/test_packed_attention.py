"""Attention over episodes in one row, without padding: that of each episode alone, on a CPU as on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from turnsmith.inference.auto import PACKED_SDPA
from turnsmith.trainer.verl.packed_attention import packed_attention, register

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 90,
    "max_position_embeddings": 256,
}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 8},
    "llama": {},
    "smollm2": {"model_type": "llama", "num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 48}
    | {"tie_word_embeddings": True},
    "mistral with a window": {"model_type": "mistral", "sliding_window": 7},
}
LENGTHS = (23, 1, 40, 6)


def model(shape: dict[str, Any], kind: str, attention: str) -> Any:
    torch.manual_seed(0)
    settings = SIZES | {"model_type": kind} | shape
    return AutoModelForCausalLM.from_config(
        AutoConfig.for_model(settings.pop("model_type"), **settings), attn_implementation=attention
    )


@pytest.mark.parametrize("kind", SHAPES)
def test_log_probs_and_gradients_are_those_of_each_episode_alone(kind: str) -> None:
    register()
    packed, alone = (model(SHAPES[kind], kind, attention) for attention in (PACKED_SDPA, "sdpa"))
    packed.gradient_checkpointing_enable()
    packed.train()
    ids = torch.randint(0, 90, (1, sum(LENGTHS)))
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    row = packed(input_ids=ids, position_ids=positions, attention_mask=None, use_cache=False).logits
    each = torch.cat([alone(input_ids=one, use_cache=False).logits for one in ids.split(LENGTHS, dim=1)], dim=1)
    assert torch.allclose(row, each, rtol=1e-5, atol=1e-6)
    for logits in (row, each):
        logits.log_softmax(-1)[..., 3].sum().backward()
    for one, other in zip(packed.parameters(), alone.parameters(), strict=True):
        assert (one.grad - other.grad).norm() <= 1e-5 * other.grad.norm()


def test_the_kernels_see_no_mask_and_no_more_than_one_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, bool]] = []
    real = torch.nn.functional.scaled_dot_product_attention

    def attention(query: torch.Tensor, *args: Any, attn_mask: Any, is_causal: bool, **kwargs: Any) -> torch.Tensor:
        seen.append((query.shape[2], is_causal))
        assert attn_mask is None
        return real(query, *args, attn_mask=attn_mask, is_causal=is_causal, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
    query = torch.randn(1, 2, sum(LENGTHS), 8)
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    packed_attention(torch.nn.Module(), query, query, query, None, position_ids=positions)
    assert seen == [(length, length > 1) for length in LENGTHS]
