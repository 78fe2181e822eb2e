"""What a sequence would have sampled alone, to the last bit, whatever batch it was decoded in.

A sum of floats depends on how it is grouped, and the model groups by the shape of the batch. So a sequence that shares
its batch gets logits that differ in their last bits from run to run. Where a run must be repeatable, its tokens are
drawn again from the logits that the model gives to the sequence alone: all of them in a few passes, on the keys and
values of its own prompt. The same weights, prompt and seed then always give the same tokens and log-probs.
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
"""Tokens in one pass: as many rows of logits are in memory at once."""


@dataclass(frozen=True, slots=True)
class PromptState:
    """A prompt that went through the model alone: its keys and values, and the logits of the token after it."""

    cache: Any
    logits: torch.Tensor

    @classmethod
    def of(cls, output: Any) -> PromptState:
        """From the model's output for the prompt, before the cache is used for anything else."""
        return cls(_shallow(output.past_key_values), output.logits[:, -1])

    def draw_again(
        self, model: Any, token_ids: list[int], sampling: Sampling, numbers: Sequence[float]
    ) -> tuple[list[int], list[float]]:
        """The tokens that follow the prompt and all but the last of `token_ids`, and their log-probs."""
        ids, log_probs = sample_tokens(self.logits, [sampling], numbers[:1])
        cache = _shallow(self.cache)
        for start in range(0, len(token_ids) - 1, _BLOCK):
            block = token_ids[start : min(start + _BLOCK, len(token_ids) - 1)]
            output = model(input_ids=torch.tensor([block]), past_key_values=cache, use_cache=True)
            chosen = numbers[start + 1 : start + 1 + len(block)]
            more_ids, more_log_probs = sample_tokens(output.logits[0], [sampling] * len(block), chosen)
            ids += more_ids
            log_probs += more_log_probs
        return ids, log_probs


def _shallow(cache: Any) -> Any:
    """A cache of the same tensors. A model appends to a cache by putting longer tensors in place of the old ones."""
    new = copy.copy(cache)
    new.layers = [copy.copy(layer) for layer in cache.layers]
    return new
