"""A prompt that is computed once for its group gives what verl gets from computing it for each episode."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.unit.trainer.prompt_groups import engine, micro_batch, responses, run
from transformers import AutoModelForCausalLM
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from turnsmith.trainer.verl.cpu.shared_prompts import SharedPromptEngine, logits_at

GROUPS = {
    "one group": [(30, (5, 9, 1, 7))],
    "two groups": [(30, (5, 9)), (44, (3, 8))],
    "nothing shared": [(20, (5,)), (11, (9,))],
    "nothing worth sharing": [(1, (90, 70))],
    "mixed": [(40, (4, 6, 2)), (7, (3,))],
}


@pytest.fixture(scope="module")
def model(tiny_folder: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32, attn_implementation="sdpa")


def gradient_of(model: Any) -> torch.Tensor:
    return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])


@pytest.mark.parametrize("concatenated", [False, True], ids=["padded", "concatenated"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("name", GROUPS)
def test_log_probs_entropy_and_gradients_are_those_of_both_layouts_of_verl(
    name: str, temperature: float, concatenated: bool, model: Any
) -> None:
    batch = micro_batch(GROUPS[name], temperature)
    # On a GPU verl pads episodes without flash attention, and concatenates them with it.
    theirs = run(FSDPEngineWithLMHead, model, micro_batch(GROUPS[name], temperature, concatenated=concatenated))
    their_gradient = gradient_of(model)
    ours = run(SharedPromptEngine, model, batch)
    for field in ("log_probs", "entropy"):
        assert torch.equal(ours[field].offsets(), theirs[field].offsets())
        for place, (one, other) in enumerate(zip(ours[field].unbind(), theirs[field].unbind(), strict=True)):
            torch.testing.assert_close(
                responses(one, batch, place), responses(other, batch, place), atol=2e-5, rtol=1e-5
            )
    difference = gradient_of(model) - their_gradient
    assert difference.norm() < 1e-6 * their_gradient.norm()  # float32: 2e-7 was measured


def test_a_group_is_one_row_and_only_what_is_said_gets_a_distribution(model: Any) -> None:
    inputs, _ = engine(SharedPromptEngine, model.config).prepare_model_inputs(micro_batch(GROUPS["one group"], 1.0))
    assert inputs["input_ids"].shape == (1, 30 + 5 + 9 + 1 + 7)
    assert inputs["logits_to_keep"] == 1 + 5 + 9 + 1 + 7


def test_models_that_look_only_at_a_window_are_left_to_verl() -> None:
    config = SimpleNamespace(hidden_size=64, layer_types=["full_attention", "sliding_attention"])
    inputs, output_args = engine(SharedPromptEngine, config).prepare_model_inputs(micro_batch(GROUPS["one group"], 1.0))
    assert inputs["input_ids"].shape == (4, 39)
    assert "places" not in output_args


@pytest.mark.nightly
def test_the_gradient_at_a_place_that_many_episodes_share_is_the_same_every_time() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.manual_seed(0)
        logits, weights = torch.randn(3, 100, 100), torch.randn(480, 100)
        row = torch.arange(3).repeat_interleave(160)
        column = torch.cat([torch.zeros(120, dtype=torch.long), torch.arange(40)]).repeat(3)
        gradients: list[torch.Tensor] = []
        for _ in range(500):  # plain indexing differed in 33 of 2,000: 500 miss it once in 4,000 times
            leaf = logits.clone().requires_grad_()
            (logits_at(leaf, row, column) * weights).sum().backward()
            assert leaf.grad is not None
            gradients = gradients or [leaf.grad]
            assert torch.equal(leaf.grad, gradients[0])
        assert torch.equal(logits_at(logits, row, column), logits[row, column])
    finally:
        torch.set_num_threads(threads)
