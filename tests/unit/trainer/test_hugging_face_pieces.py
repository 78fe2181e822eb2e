"""The Hugging Face folder is written in pieces, by one process or several, and none of them holds the whole model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.unit.cli.test_export import write_shards
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from turnsmith.trainer.checkpoints.hugging_face import finish_model, write_weights


def llama(width: int = 32, layers: int = 5) -> Any:
    torch.manual_seed(3)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=50,
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    )


def mixture() -> Any:
    """A model whose experts transformers holds in one tensor and writes as many."""
    torch.manual_seed(4)
    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            vocab_size=50,
            hidden_size=16,
            intermediate_size=32,
            moe_intermediate_size=8,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_experts=4,
            num_experts_per_tok=2,
        )
    )


def actor_of(model: Any, folder: Path) -> Path:
    actor = folder / "actor"
    actor.mkdir(parents=True)
    write_shards(model.state_dict(), actor)
    model.config.save_pretrained(actor / "huggingface")
    return actor


def weights_in(folder: Path) -> dict[str, Any]:
    return {name: one for file in folder.glob("*.safetensors") for name, one in load_file(file).items()}


@pytest.mark.parametrize("make", [llama, mixture])
@pytest.mark.parametrize("places", [1, 3])
def test_pieces_of_several_processes_are_the_files_of_transformers(make: Any, places: int, tmp_path: Path) -> None:
    model = make()
    actor, out = actor_of(model, tmp_path), tmp_path / "out"
    files = [
        file.name
        for place in reversed(range(places))
        for file in write_weights(actor, out, place=place, places=places, piece_bytes=20_000)
    ]
    finish_model(actor, out)
    assert sorted(files) == [f"model-{number + 1:05d}-of-{len(files):05d}.safetensors" for number in range(len(files))]
    assert len(files) >= 3
    model.save_pretrained(tmp_path / "theirs")
    ours, theirs = weights_in(out), weights_in(tmp_path / "theirs")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(one, theirs[name]) for name, one in ours.items())
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(one.nbytes for one in ours.values())
    assert index["weight_map"].keys() == ours.keys()
    loaded, kept = type(model).from_pretrained(out).state_dict(), model.state_dict()
    assert all(torch.equal(one, loaded[name]) for name, one in kept.items())
    assert not list(out.glob(".*"))


def _peak_growth(work: Any) -> int:
    """By how much the resident memory of this process grew at most, in bytes, mapped pages of files included."""

    def read(field: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = read("VmRSS")
    work()
    return read("VmHWM") - before


def test_a_process_holds_a_piece_and_not_the_model(tmp_path: Path) -> None:
    model = llama(width=256, layers=24)
    size = sum(one.nbytes for one in model.parameters())
    actor = actor_of(model, tmp_path)
    del model
    piece = 8 * 1024**2
    write_weights(actor, tmp_path / "first", place=10**6, places=10**6 + 1, piece_bytes=piece)  # imports
    growth = _peak_growth(lambda: write_weights(actor, tmp_path / "out", piece_bytes=piece))
    assert size > 6 * piece
    assert growth < 3 * piece
