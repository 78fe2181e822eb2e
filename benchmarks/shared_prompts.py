"""Forward and backward pass over a group whose episodes share a prompt: turnsmith's layout beside verl's.

SmolLM2-135M in float32, eight episodes of 229 prompt tokens and 68 response tokens, as in `benchmarks/learning.py`.
Prints the seconds of each, in turn, and the ratio of the least.

Run, in the project's folder: python -m benchmarks.shared_prompts [rounds] [--json]
"""

from __future__ import annotations

import argparse
import time

import torch
from benchmarks import results
from tests.unit.trainer.prompt_groups import micro_batch, run
from transformers import AutoModelForCausalLM
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from turnsmith.models import resolve
from turnsmith.trainer.verl.cpu.shared_prompts import SharedPromptEngine


def main() -> None:
    """Measure both in turn and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rounds", type=int, nargs="?", default=3)
    results.add_option(parser)
    options = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(resolve("smollm2"), dtype=torch.float32, attn_implementation="sdpa")
    batch = micro_batch([(229, [68] * 8)], 1.0, model.config.vocab_size)
    least = {kind: float("inf") for kind in (FSDPEngineWithLMHead, SharedPromptEngine)}
    for _ in range(options.rounds):
        for kind in least:
            began = time.perf_counter()
            run(kind, model, batch)
            spent = time.perf_counter() - began
            least[kind] = min(least[kind], spent)
            print(f"{kind.__name__:22} {spent:6.2f} s", flush=True)
    ratio = least[SharedPromptEngine] / least[FSDPEngineWithLMHead]
    print(f"turnsmith / verl = {ratio:.2f}")
    results.record("shared_prompts", {"ratio": ratio}, is_wanted=options.json)


if __name__ == "__main__":
    main()
