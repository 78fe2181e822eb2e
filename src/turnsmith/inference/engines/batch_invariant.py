"""Makes a seeded sequence batch-invariant: bit for bit what it would have sampled alone.

Floating-point sums depend on how they are grouped, and the model groups them by the shape of the batch. So the logits
of a sequence that shares a batch differ in their last bits from run to run. For a run that must be reproducible, the
tokens are sampled again from the logits that the model computes for the sequence alone: all of them in a few forward
passes, on the keys and values of the prompt. These passes have fixed shapes, so that the logits of a token depend on
the tokens before it and on nothing else. The same weights, prompt and seed then always give the same tokens and
log-probs.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from turnsmith.inference.engine import Sampling
from turnsmith.inference.engines.sampling import sample_tokens

_LARGEST_BLOCK = 128
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
        prompt_length = cache.get_seq_length()
        for start, end in _blocks(len(token_ids) - 1):
            block = token_ids[start : min(end, len(token_ids) - 1)]
            # A shorter pass would round differently. That can change a token, and with it the sequence's length again,
            # without end. The padding repeats a position, because the next one may be past the model's last.
            padding = end - start - len(block)
            positions = [prompt_length + start + place for place in range(len(block))]
            output = model(
                input_ids=torch.tensor([block + [0] * padding]),
                position_ids=torch.tensor([positions + positions[-1:] * padding]),
                past_key_values=cache,
                use_cache=True,
            )
            block_numbers = random_numbers[start + 1 : start + 1 + len(block)]
            block_ids, block_log_probs = sample_tokens(
                output.logits[0, : len(block)], [sampling] * len(block), block_numbers
            )
            ids += block_ids
            log_probs += block_log_probs
        return ids, log_probs


def _blocks(length: int) -> Iterator[tuple[int, int]]:
    """Where each forward pass over `length` tokens starts and ends; the last one may end after them."""
    start, size = 0, 8
    while start < length:
        yield start, start + size
        start += size
        size = min(start, _LARGEST_BLOCK)


def _shallow_copy(cache: Any) -> Any:
    """A cache with the same tensors: a model appends to a cache by replacing its tensors with longer ones."""
    new = copy.copy(cache)
    new.layers = [copy.copy(layer) for layer in cache.layers]
    return new
