"""Makes a seeded sequence batch-invariant: bit for bit what it would have sampled alone.

Floating-point sums depend on how they are grouped, and the model groups them by the shape of the batch. So the logits
of a sequence that shares a batch differ in their last bits from run to run. For a run that must be reproducible, the
tokens are sampled again from the logits that the model computes for the sequence alone: all of them in a few forward
passes, on the keys and values of the prompt. The same weights, prompt and seed then always give the same tokens and
log-probs.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from turnsmith.inference.engine import Sampling
from turnsmith.inference.engines.sampling import sample_tokens

_BLOCK = 128
"""Tokens per forward pass, which bounds the memory for logits."""


@dataclass(frozen=True, slots=True)
class PromptState:
    """A prompt that was prefilled alone: its keys and values, and the logits of the token after it."""

    cache: Any
    logits: torch.Tensor

    @classmethod
    def of(cls, output: Any) -> PromptState:
        """Take it from the model's output for the prompt, before anything is appended to the cache."""
        return cls(_shallow_copy(output.past_key_values), output.logits[:, -1])

    def resample(
        self, model: Any, token_ids: list[int], sampling: Sampling, random_numbers: Sequence[float]
    ) -> tuple[list[int], list[float]]:
        """Sample each token again, given the prompt and the `token_ids` before it. Returns ids and log-probs."""
        ids, log_probs = sample_tokens(self.logits, [sampling], random_numbers[:1])
        cache = _shallow_copy(self.cache)
        for start in range(0, len(token_ids) - 1, _BLOCK):
            block = token_ids[start : min(start + _BLOCK, len(token_ids) - 1)]
            output = model(input_ids=torch.tensor([block]), past_key_values=cache, use_cache=True)
            block_numbers = random_numbers[start + 1 : start + 1 + len(block)]
            block_ids, block_log_probs = sample_tokens(output.logits[0], [sampling] * len(block), block_numbers)
            ids += block_ids
            log_probs += block_log_probs
        return ids, log_probs


def _shallow_copy(cache: Any) -> Any:
    """A cache with the same tensors: a model appends to a cache by replacing its tensors with longer ones."""
    new = copy.copy(cache)
    new.layers = [copy.copy(layer) for layer in cache.layers]
    return new
