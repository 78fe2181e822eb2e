"""What is known of a trainer rank's memory before a run: executed where it can be, and kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from turnsmith.config import ConfigStore
from turnsmith.config_sources import apply_overrides
from turnsmith.trainer.config import peak_memory
from turnsmith.trainer.config.peak_memory import PeakMemory, executed_peak


def gpu_config(folder: str, *words: str) -> ConfigStore:
    sizes = (
        "ray.gpus_per_node=2 training.batch_size=16 inference.max_prompt_tokens=100 inference.max_episode_tokens=156"
    )
    own = f"model.device=cuda inference.backend=vllm model.local_path={folder} {sizes}".split()
    return apply_overrides(ConfigStore(), [*own, *words])


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["training.adv_estimator=gae"], "critic"),
        (["model.attn_implementation=flash_attention_2"], "flash-attn"),
        (["verl.actor_rollout_ref.model.use_fused_kernels=false"], "only fused log-probs"),
    ],
    ids=["critic", "flash", "plain"],
)
def test_what_is_not_executed_says_why(tiny_folder: str, words: list[str], reason: str) -> None:
    found = executed_peak(gpu_config(tiny_folder, *words))
    assert isinstance(found, str)
    assert reason in found


def test_a_layout_is_executed_once_and_another_one_again(
    tiny_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def execute(given: Any) -> PeakMemory:
        asked.append(given)
        return PeakMemory(1, 2, 3, 4, 5, 6, {}, 7, 8.0)

    monkeypatch.setenv("TURNSMITH_CACHE", str(tmp_path))
    monkeypatch.setattr(peak_memory, "_execute", execute)
    for _ in range(2):
        found = executed_peak(gpu_config(tiny_folder))
        assert isinstance(found, PeakMemory)
    assert [one["length"] for one in asked] == [256]
    executed_peak(gpu_config(tiny_folder, "ray.gpus_per_node=4"))
    executed_peak(gpu_config(tiny_folder), episode=128)
    assert len(asked) == 3
    monkeypatch.setattr(peak_memory, "version", lambda name: "0.0")
    executed_peak(gpu_config(tiny_folder))
    assert len(asked) == 4


@pytest.mark.parametrize("rank", [0, pytest.param(4, marks=pytest.mark.nightly)])
def test_executed_state_is_that_computed_by_hand(
    tiny_folder: str, tmp_path: Path, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNSMITH_CACHE", str(tmp_path))
    sizes = json.loads((Path(tiny_folder) / "config.json").read_text())
    found = executed_peak(gpu_config(tiny_folder, f"model.lora_rank={rank}"))
    assert isinstance(found, PeakMemory), found
    hidden, inner, layers = (sizes[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers"))
    head = sizes.get("head_dim") or hidden // sizes["num_attention_heads"]
    queries, values = (head * sizes[f"num_{name}_heads"] for name in ("attention", "key_value"))
    shapes = [(hidden, queries)] * 2 + [(hidden, values)] * 2 + [(hidden, inner)] * 3
    tables = sizes["vocab_size"] * hidden * (1 if sizes["tie_word_embeddings"] else 2)
    base = tables + hidden + layers * (2 * hidden + sum(one * other for one, other in shapes))
    adapter = layers * sum(rank * (one + other) for one, other in shapes)
    trained = 4 * (adapter or base) / 2
    assert found.parameters == pytest.approx(4 * (base + adapter) / 2, rel=0.01)
    assert found.gradients == pytest.approx(trained, rel=0.01)
    assert found.optimizer == pytest.approx(2 * trained, rel=0.01)
    assert found.update > found.rest >= found.parameters + found.optimizer
    assert any("attention_backward" in name for name in found.operators)
