"""Batched decoding with plain transformers: sequences join and leave between two tokens.

All sequences share one left-padded key-value cache. A new request is prefilled on its own and its cache is padded to
the batch's length; a finished one is cut out. Every sequence draws its tokens from a generator of its own, so what it
samples does not depend on who it shares the batch with (up to float rounding).

Knows nothing of asyncio, threads, chat or training. Works for models whose cache is plain keys and values.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch

from turnwise.errors import EngineFailure
from turnwise.inference.engine import Sampling


@dataclass(slots=True)
class Sequence:
    """One request while it is being decoded."""

    prompt_ids: list[int]
    sampling: Sampling
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    stop_reason: str = ""
    """Empty while the sequence runs, then `stop` or `length`; `abort` if whoever asked for it gave it up."""
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.sampling.seed)

    def take(self, token_id: int, log_prob: float) -> None:
        """Append a sampled token and decide whether the sequence ends with it."""
        self.token_ids.append(token_id)
        self.log_probs.append(log_prob)
        if token_id in self.sampling.stop_token_ids:
            self.stop_reason = "stop"
        elif len(self.token_ids) >= self.sampling.max_tokens:
            self.stop_reason = "length"


class ContinuousBatch:
    """The sequences being decoded together, and their shared cache."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.sequences: list[Sequence] = []
        self._cache: Any = None
        self._mask = torch.zeros(0, 0, dtype=torch.long)
        self._last = torch.zeros(0, 1, dtype=torch.long)

    @torch.inference_mode()
    def join(self, sequences: list[Sequence]) -> list[Sequence]:
        """Prefill new sequences, sample their first token, and add them; return those that ended at once."""
        longest = max(len(sequence.prompt_ids) for sequence in sequences)
        ids = torch.zeros(len(sequences), longest, dtype=torch.long)
        mask = torch.zeros(len(sequences), longest, dtype=torch.long)
        for row, sequence in enumerate(sequences):
            ids[row, longest - len(sequence.prompt_ids) :] = torch.tensor(sequence.prompt_ids)
            mask[row, longest - len(sequence.prompt_ids) :] = 1
        output = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1).clamp(min=0),
            use_cache=True,
            logits_to_keep=1,
        )
        last = _sample(output.logits[:, -1], sequences)
        if self.sequences:
            _append_cache(self._cache, self._mask.shape[1], output.past_key_values, longest)
            length = max(self._mask.shape[1], longest)
            self._mask = torch.cat([_pad_left(self._mask, length), _pad_left(mask, length)])
            self._last = torch.cat([self._last, last])
        else:
            self._cache, self._mask, self._last = output.past_key_values, mask, last
        self.sequences.extend(sequences)
        return self.remove_ended()

    @torch.inference_mode()
    def step(self) -> list[Sequence]:
        """Sample one token for every sequence; return those that ended, which have left the batch."""
        self._mask = torch.cat([self._mask, torch.ones(len(self.sequences), 1, dtype=torch.long)], dim=1)
        output = self.model(
            input_ids=self._last,
            attention_mask=self._mask,
            position_ids=self._mask.sum(1, keepdim=True) - 1,
            past_key_values=self._cache,
            use_cache=True,
        )
        self._cache = output.past_key_values
        self._last = _sample(output.logits[:, -1], self.sequences)
        return self.remove_ended()

    @torch.inference_mode()
    def remove_ended(self) -> list[Sequence]:
        """Cut out and return the sequences that have a stop reason."""
        finished = [sequence for sequence in self.sequences if sequence.stop_reason]
        if not finished:
            return []
        keep = [row for row, sequence in enumerate(self.sequences) if not sequence.stop_reason]
        self.sequences = [self.sequences[row] for row in keep]
        if not keep:
            self._cache = None
            return finished
        rows = torch.tensor(keep)
        mask = self._mask[rows]
        # What no remaining sequence attends to is dropped, so that the cache shrinks with its longest member.
        start = mask.shape[1] - int(mask.sum(1).max())
        for layer in self._cache.layers:
            layer.keys = layer.keys[rows][:, :, start:].contiguous()
            layer.values = layer.values[rows][:, :, start:].contiguous()
        self._mask, self._last = mask[:, start:], self._last[rows]
        return finished


def check_model(model: Any) -> None:
    """Raise if the model's cache is not plain keys and values, which joining and leaving needs."""
    with torch.inference_mode():
        output = model(input_ids=torch.zeros(1, 1, dtype=torch.long), use_cache=True)
    layers = getattr(getattr(output, "past_key_values", None), "layers", None)
    if not layers or any(type(layer).__name__ != "DynamicLayer" for layer in layers):
        raise EngineFailure(
            f"The transformers engine cannot batch {type(model).__name__}: its cache is not plain keys and values. "
            "Use inference.backend=vllm for this model."
        )


def _pad_left(mask: torch.Tensor, length: int) -> torch.Tensor:
    return torch.nn.functional.pad(mask, (length - mask.shape[1], 0))


def _append_cache(cache: Any, length: int, new_cache: Any, new_length: int) -> None:
    common = max(length, new_length)
    for layer, new_layer in zip(cache.layers, new_cache.layers, strict=True):
        for name in ("keys", "values"):
            old = torch.nn.functional.pad(getattr(layer, name), (0, 0, common - length, 0))
            new = torch.nn.functional.pad(getattr(new_layer, name), (0, 0, common - new_length, 0))
            setattr(layer, name, torch.cat([old, new]))


def _sample(logits: torch.Tensor, sequences: list[Sequence]) -> torch.Tensor:
    """Draw one token a row, hand it to its sequence, and return the ids as a column."""
    logits = logits.float()
    temperature = torch.tensor([sequence.sampling.temperature for sequence in sequences]).unsqueeze(1)
    greedy = temperature == 0
    log_probs = torch.log_softmax(logits / temperature.masked_fill(greedy, 1.0), dim=-1)
    log_probs = _truncate(log_probs, sequences)
    draws = torch.tensor([sequence.random.random() for sequence in sequences], dtype=torch.float64).unsqueeze(1)
    cumulative = log_probs.double().exp().cumsum(-1)
    total = cumulative[:, -1:].contiguous()
    if total.isnan().any():
        raise EngineFailure("The model's logits are not numbers: its weights are broken, or overflow in this dtype.")
    # Kept below the last sum, so that rounding can never point past the last token with any probability.
    points = torch.minimum(draws * total, total.nextafter(torch.zeros_like(total)))
    drawn = torch.searchsorted(cumulative, points, right=True)
    ids = torch.where(greedy, logits.argmax(-1, keepdim=True), drawn)
    chosen = log_probs.gather(1, ids)
    for sequence, token_id, log_prob in zip(sequences, ids[:, 0].tolist(), chosen[:, 0].tolist(), strict=True):
        sequence.take(token_id, log_prob)
    return ids


def _truncate(log_probs: torch.Tensor, sequences: list[Sequence]) -> torch.Tensor:
    """Apply top-k and top-p, and renormalise; rows that ask for neither are untouched."""
    for row, sequence in enumerate(sequences):
        sampling = sequence.sampling
        if sampling.top_k < 1 and sampling.top_p >= 1.0:
            continue
        ordered, index = log_probs[row].sort(descending=True)
        keep = torch.ones_like(ordered, dtype=torch.bool)
        if sampling.top_k >= 1:
            keep[sampling.top_k :] = False
        if sampling.top_p < 1.0:
            before = ordered.exp().cumsum(0) - ordered.exp()
            keep &= before < sampling.top_p
        keep[0] = True
        kept = torch.full_like(ordered, float("-inf")).masked_scatter(keep, ordered[keep])
        log_probs[row, index] = kept - kept.logsumexp(0)
    return log_probs
