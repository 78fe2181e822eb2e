"""Groups of episodes in the form that verl hands to its engines, and an engine without a process group around it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.torch_functional import entropy_from_logits


def micro_batch(
    groups: Sequence[tuple[int, Sequence[int]]],
    temperature: float,
    vocabulary: int = 90,
    *,
    concatenated: bool = False,
) -> TensorDict:
    """Episodes in any order, by the length of each group's prompt and of its responses.

    `concatenated`: in one row, as verl has them with flash attention.
    """
    draw = random.Random(len(groups))
    rows: list[tuple[list[int], list[int]]] = []
    for prompt_length, responses in groups:
        prompt = [draw.randrange(4, vocabulary) for _ in range(prompt_length)]
        rows += [(prompt, [draw.randrange(4, vocabulary) for _ in range(length)]) for length in responses]
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
        {"use_remove_padding": concatenated, "calculate_entropy": True, "temperature": temperature, "pad_token_id": 0},
    )


def engine(kind: type, config: Any) -> Any:
    """As much of an engine as lays a micro-batch out, for a model with this config."""
    made = object.__new__(kind)
    made.pad_to_length = None
    made.use_ulysses_sp = False
    made.compute_entropy_from_logits = entropy_from_logits
    made.engine_config = SimpleNamespace(entropy_checkpointing=False, entropy_from_logits_with_chunking=False)
    made.model_config = SimpleNamespace(hf_config=config)
    return made


def responses(values: torch.Tensor, batch: TensorDict, place: int) -> torch.Tensor:
    """What is said of the tokens of a response: each is predicted one place before its own."""
    prompt = int(batch["prompts"].offsets().diff()[place])
    return values[prompt - 1 : -1]


def run(kind: type, model: Any, batch: TensorDict) -> dict[str, torch.Tensor]:
    """A forward pass, and a backward pass from the squares of what is said of the responses."""
    made = engine(kind, model.config)
    inputs, output_args = made.prepare_model_inputs(batch)
    found = made.prepare_model_outputs(model(**inputs, use_cache=False), output_args, batch, None)
    model.zero_grad()
    spoken = [responses(one, batch, place) for place, one in enumerate(found["log_probs"].unbind())]
    torch.stack([one.square().sum() for one in spoken]).sum().backward()
    return found
