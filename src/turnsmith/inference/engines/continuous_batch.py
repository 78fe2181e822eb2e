"""Batched decoding with plain transformers: sequences join and leave between two tokens.

All sequences share one left-padded key-value cache. A new request is prefilled on its own and its cache is padded to
the batch's length; a finished one is cut out. Every sequence draws its tokens from a generator of its own, so what it
samples does not depend on who it shares the batch with, but for rounding: the sums inside the model are grouped by the
shape of the batch. Where a sequence has a seed, that too is taken out (`solo`).

Knows nothing of asyncio, threads, chat or training. Works for models whose cache is plain keys and values.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch

from turnsmith.errors import EngineFailure
from turnsmith.inference.engine import Sampling
from turnsmith.inference.engines.batch_invariant import PromptState
from turnsmith.inference.engines.sampling import sample_tokens


@dataclass(slots=True)
class Sequence:
    """One request while it is being decoded."""

    prompt_ids: list[int]
    sampling: Sampling
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    stop_reason: str = ""
    """Empty while the sequence runs, then `stop` or `length`; `abort` if whoever asked for it gave it up."""
    weights_version: int = 0
    """Of the weights that sampled its first token."""
    swaps: list[tuple[int, int]] = field(default_factory=list)
    """Index of the first token that newer weights sampled, and their version."""
    numbers: list[float] = field(default_factory=list)
    """The random numbers that chose the tokens."""
    opening: PromptState | None = None
    """What the model made of the prompt alone; only for a sequence with a seed."""
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

    def number(self) -> float:
        """The random number that chooses the next token."""
        if len(self.numbers) == len(self.token_ids):
            self.numbers.append(self.random.random())
        return self.numbers[len(self.token_ids)]

    def swap(self, version: int) -> None:
        """Note that the next token is the first one that weights of this version sample."""
        place = len(self.token_ids)
        if self.swaps and self.swaps[-1][0] == place:  # new weights twice between two tokens
            self.swaps.pop()
        self.swaps.append((place, version))


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
        seeded = [[sequence] for sequence in sequences if sequence.sampling.seed is not None]
        together = [sequence for sequence in sequences if sequence.sampling.seed is None]
        for part in [*seeded, together] if together else seeded:
            output, mask = self._prefill([sequence.prompt_ids for sequence in part])
            if part is not together:
                part[0].opening = PromptState.of(output)
            self._add(part, output.past_key_values, mask, _sample(output.logits[:, -1], part))
        return self.remove_ended()

    def _add(self, sequences: list[Sequence], cache: Any, mask: torch.Tensor, last: torch.Tensor) -> None:
        if self.sequences:
            _append_cache(self._cache, self._mask.shape[1], cache, mask.shape[1])
            length = max(self._mask.shape[1], mask.shape[1])
            self._mask = torch.cat([_pad_left(self._mask, length), _pad_left(mask, length)])
            self._last = torch.cat([self._last, last])
        else:
            self._cache, self._mask, self._last = cache, mask, last
        self.sequences.extend(sequences)

    @torch.inference_mode()
    def refresh(self) -> None:
        """Compute the cache anew, because the model has new weights.

        The next token then has the very probability that the new weights give it, and not that of a mixture.
        """
        if self.sequences:
            for sequence in self.sequences:
                sequence.opening = None
            # The last token is not in the cache yet: the next step puts it there.
            seen = [sequence.prompt_ids + sequence.token_ids[:-1] for sequence in self.sequences]
            output, self._mask = self._prefill(seen)
            self._cache = output.past_key_values

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
        self._keep([row for row, sequence in enumerate(self.sequences) if not sequence.stop_reason])
        for sequence in finished:
            if sequence.opening is not None and sequence.stop_reason != "abort":
                self._confirm(sequence, sequence.opening)
        return [sequence for sequence in finished if sequence.stop_reason]

    def _keep(self, keep: list[int]) -> None:
        self.sequences = [self.sequences[row] for row in keep]
        if not keep:
            self._cache = None
            return
        rows = torch.tensor(keep)
        mask = self._mask[rows]
        # What no remaining sequence attends to is dropped, so that the cache shrinks with its longest member.
        start = mask.shape[1] - int(mask.sum(1).max())
        for layer in self._cache.layers:
            layer.keys = layer.keys[rows][:, :, start:].contiguous()
            layer.values = layer.values[rows][:, :, start:].contiguous()
        self._mask, self._last = mask[:, start:], self._last[rows]

    def _confirm(self, sequence: Sequence, opening: PromptState) -> None:
        """Put what the sequence would have sampled alone in place of what it did; it comes back if it goes on."""
        ids, log_probs = opening.draw_again(self.model, sequence.token_ids, sequence.sampling, sequence.numbers)
        same = next(
            (place for place, pair in enumerate(zip(ids, sequence.token_ids, strict=True)) if len({*pair}) > 1), None
        )
        length = len(ids) if same is None else same + 1
        sequence.token_ids, sequence.log_probs, sequence.stop_reason = [], [], ""
        for token_id, log_prob in zip(ids[:length], log_probs, strict=False):
            sequence.take(token_id, log_prob)
        if sequence.stop_reason:
            return
        # Rounding decided a token, once in some ten million: everything after it is void.
        output, mask = self._prefill([sequence.prompt_ids + sequence.token_ids[:-1]])
        self._add([sequence], output.past_key_values, mask, torch.tensor([sequence.token_ids[-1:]]))

    def _prefill(self, rows: list[list[int]]) -> tuple[Any, torch.Tensor]:
        """Run the model over prompts of any lengths, padded on the left; also returns which places are no padding."""
        longest = max(map(len, rows))
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        mask = torch.zeros(len(rows), longest, dtype=torch.long)
        for place, row in enumerate(rows):
            ids[place, longest - len(row) :] = torch.tensor(row)
            mask[place, longest - len(row) :] = 1
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        output = self.model(
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1
        )
        return output, mask


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
    samplings = [sequence.sampling for sequence in sequences]
    ids, log_probs = sample_tokens(logits, samplings, [sequence.number() for sequence in sequences])
    for sequence, token_id, log_prob in zip(sequences, ids, log_probs, strict=True):
        sequence.take(token_id, log_prob)
    return torch.tensor(ids).unsqueeze(1)
