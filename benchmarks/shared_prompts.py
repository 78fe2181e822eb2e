"""Forward and backward pass over a group whose episodes share a prompt: turnsmith's layout beside verl's.

SmolLM2-135M in float32, eight episodes of 229 prompt tokens and 68 response tokens, as in `benchmarks/learning.py`.
Prints the seconds of each, in alternating order, and the median of the rounds' ratios.

Run, in the project's folder: python -m benchmarks.shared_prompts [rounds] [--json]
"""

from __future__ import annotations

import argparse
import time

import torch
from benchmarks import results
from benchmarks.rounds import check_rounds, in_turn, median_ratio
from tests.unit.trainer.prompt_groups import micro_batch, run
from transformers import AutoModelForCausalLM
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from turnsmith.inference.models import resolve
from turnsmith.trainer.verl.cpu.shared_prompts import SharedPromptEngine


def main() -> None:
    """Measure both in turn and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rounds", type=int, nargs="?", default=3)
    results.add_option(parser)
    options = parser.parse_args()
    check_rounds(parser, options)
    model = AutoModelForCausalLM.from_pretrained(resolve("smollm2"), dtype=torch.float32, attn_implementation="sdpa")
    batch = micro_batch([(229, [68] * 8)], 1.0, model.config.vocab_size)
    kinds = (FSDPEngineWithLMHead, SharedPromptEngine)
    spent: dict[type, list[float]] = {kind: [] for kind in kinds}
    for kind in in_turn(kinds, options.rounds):
        began = time.perf_counter()
        run(kind, model, batch)
        spent[kind].append(time.perf_counter() - began)
        print(f"{kind.__name__:22} {spent[kind][-1]:6.2f} s", flush=True)
    ratio = median_ratio(spent[SharedPromptEngine], spent[FSDPEngineWithLMHead])
    print(f"turnsmith / verl = {ratio:.2f}")
    results.record("shared_prompts", {"ratio": ratio}, is_wanted=options.json)


if __name__ == "__main__":
    main()
