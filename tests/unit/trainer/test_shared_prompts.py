"""A prompt that is computed once for its group gives what verl gets from computing it for each episode."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from transformers import AutoModelForCausalLM
from verl.utils import tensordict_utils as tu
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from turnwise.trainer.verl.shared_prompts import SharedPromptEngine

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


def micro_batch(groups: list[tuple[int, tuple[int, ...]]], temperature: Any) -> TensorDict:
    draw = random.Random(len(groups))
    rows = []
    for prompt_length, responses in groups:
        prompt = [draw.randrange(4, 90) for _ in range(prompt_length)]
        rows += [(prompt, [draw.randrange(4, 90) for _ in range(length)]) for length in responses]
    draw.shuffle(rows)

    def nested(parts: list[list[int]]) -> torch.Tensor:
        return torch.nested.as_nested_tensor([torch.tensor(part) for part in parts], layout=torch.jagged)

    whole = [prompt + response for prompt, response in rows]
    fields = {
        "input_ids": nested(whole),
        "position_ids": nested([list(range(len(ids))) for ids in whole]),
        "prompts": nested([prompt for prompt, _ in rows]),
    }
    return tu.get_tensordict(
        fields,
        {"use_remove_padding": False, "calculate_entropy": True, "temperature": temperature, "pad_token_id": 0},
    )


def run(kind: type, model: Any, batch: TensorDict) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    engine = object.__new__(kind)
    engine.pad_to_length = None
    engine.engine_config = SimpleNamespace(entropy_checkpointing=False)
    engine.model_config = SimpleNamespace(hf_config=model.config)
    inputs, output_args = engine.prepare_model_inputs(batch)
    found = engine.prepare_model_outputs(model(**inputs, use_cache=False), output_args, batch, None)
    model.zero_grad()
    spoken = [responses(one, batch, place) for place, one in enumerate(found["log_probs"].unbind())]
    sum(one.square().sum() for one in spoken).backward()
    gradient = torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])
    return found, gradient


def responses(values: torch.Tensor, batch: TensorDict, place: int) -> torch.Tensor:
    """What is said of the tokens of a response: each is predicted one place before its own."""
    prompt = int(batch["prompts"].offsets().diff()[place])
    return values[prompt - 1 : -1]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("name", GROUPS)
def test_log_probs_entropy_and_gradients_are_those_of_verl(name: str, temperature: float, model: Any) -> None:
    batch = micro_batch(GROUPS[name], temperature)
    theirs, their_gradient = run(FSDPEngineWithLMHead, model, batch)
    ours, our_gradient = run(SharedPromptEngine, model, batch)
    for field in ("log_probs", "entropy"):
        assert torch.equal(ours[field].offsets(), theirs[field].offsets())
        for place, (one, other) in enumerate(zip(ours[field].unbind(), theirs[field].unbind(), strict=True)):
            torch.testing.assert_close(
                responses(one, batch, place), responses(other, batch, place), atol=2e-5, rtol=1e-5
            )
    torch.testing.assert_close(our_gradient, their_gradient, atol=2e-4, rtol=1e-4)


def test_a_group_is_one_row_and_only_what_is_said_gets_a_distribution(model: Any) -> None:
    engine = object.__new__(SharedPromptEngine)
    engine.pad_to_length = None
    engine.model_config = SimpleNamespace(hf_config=model.config)
    inputs, _ = engine.prepare_model_inputs(micro_batch(GROUPS["one group"], 1.0))
    assert inputs["input_ids"].shape == (1, 30 + 5 + 9 + 1 + 7)
    assert inputs["logits_to_keep"] == 1 + 5 + 9 + 1 + 7


def test_models_that_look_only_at_a_window_are_left_to_verl(model: Any) -> None:
    engine = object.__new__(SharedPromptEngine)
    engine.pad_to_length = None
    config = SimpleNamespace(hidden_size=64, layer_types=["full_attention", "sliding_attention"])
    engine.model_config = SimpleNamespace(hf_config=config)
    inputs, output_args = engine.prepare_model_inputs(micro_batch(GROUPS["one group"], 1.0))
    assert inputs["input_ids"].shape == (4, 39)
    assert "places" not in output_args
