"""Forward and backward pass over a group whose episodes share a prompt: turnsmith's layout beside verl's.

SmolLM2-135M in float32, eight episodes of 229 prompt tokens and 68 response tokens, as in `benchmarks/learning.py`.
Prints the seconds of each, in turn, and the ratio of the least.

Run, in the project's folder: python -m benchmarks.shared_prompts [rounds]
"""

from __future__ import annotations

import sys
import time

import torch
from tests.unit.trainer.prompt_groups import micro_batch, run
from transformers import AutoModelForCausalLM
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from turnsmith.models import resolve
from turnsmith.trainer.verl.cpu.shared_prompts import SharedPromptEngine


def main() -> None:
    """Measure both in turn and print the ratio."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    model = AutoModelForCausalLM.from_pretrained(resolve("smollm2"), dtype=torch.float32, attn_implementation="sdpa")
    batch = micro_batch([(229, [68] * 8)], 1.0, model.config.vocab_size)
    least = {kind: float("inf") for kind in (FSDPEngineWithLMHead, SharedPromptEngine)}
    for _ in range(rounds):
        for kind in least:
            began = time.perf_counter()
            run(kind, model, batch)
            spent = time.perf_counter() - began
            least[kind] = min(least[kind], spent)
            print(f"{kind.__name__:22} {spent:6.2f} s", flush=True)
    print(f"turnsmith / verl = {least[SharedPromptEngine] / least[FSDPEngineWithLMHead]:.2f}")


if __name__ == "__main__":
    main()
