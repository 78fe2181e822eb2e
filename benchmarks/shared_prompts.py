"""Forward and backward pass over a group whose episodes share a prompt: turnwise's layout beside verl's.

SmolLM2-135M in float32, eight episodes of 229 prompt tokens and 68 response tokens, as in `benchmarks/learning.py`.
Prints the seconds of each, in turn, and the ratio of the least.

Run: python benchmarks/shared_prompts.py [rounds]
"""

from __future__ import annotations

import random
import sys
import time
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from verl.utils import tensordict_utils as tu
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from turnwise.models import resolve
from turnwise.trainer.verl.shared_prompts import SharedPromptEngine

EPISODES, PROMPT, RESPONSE = 8, 229, 68


def micro_batch(vocabulary: int) -> Any:
    """A group, in the form that verl hands to its engines."""
    draw = random.Random(0)
    prompt = [draw.randrange(vocabulary) for _ in range(PROMPT)]
    whole = [prompt + [draw.randrange(vocabulary) for _ in range(RESPONSE)] for _ in range(EPISODES)]

    def nested(parts: list[list[int]]) -> torch.Tensor:
        return torch.nested.as_nested_tensor([torch.tensor(part) for part in parts], layout=torch.jagged)

    fields = {
        "input_ids": nested(whole),
        "position_ids": nested([list(range(PROMPT + RESPONSE))] * EPISODES),
        "prompts": nested([prompt] * EPISODES),
    }
    return tu.get_tensordict(fields, {"use_remove_padding": False, "temperature": 1.0, "pad_token_id": 0})


def seconds(kind: type, model: Any, batch: Any) -> float:
    """One forward and backward pass."""
    engine = object.__new__(kind)
    engine.pad_to_length = None
    engine.engine_config = SimpleNamespace(entropy_checkpointing=False)
    engine.model_config = SimpleNamespace(hf_config=model.config)
    model.zero_grad()
    began = time.perf_counter()
    inputs, output_args = engine.prepare_model_inputs(batch)
    found = engine.prepare_model_outputs(model(**inputs, use_cache=False), output_args, batch, None)
    sum(one[PROMPT - 1 : -1].sum() for one in found["log_probs"].unbind()).backward()
    return time.perf_counter() - began


def main() -> None:
    """Measure both in turn and print the ratio."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    model = AutoModelForCausalLM.from_pretrained(resolve("smollm2"), dtype=torch.float32, attn_implementation="sdpa")
    batch = micro_batch(model.config.vocab_size)
    least = {kind: float("inf") for kind in (FSDPEngineWithLMHead, SharedPromptEngine)}
    for _ in range(rounds):
        for kind in least:
            spent = seconds(kind, model, batch)
            least[kind] = min(least[kind], spent)
            print(f"{kind.__name__:22} {spent:6.2f} s", flush=True)
    print(f"turnwise / verl = {least[SharedPromptEngine] / least[FSDPEngineWithLMHead]:.2f}")


if __name__ == "__main__":
    main()
