"""Continuous batching with plain transformers: sequences join and leave the batch between two tokens.

All sequences share one left-padded key-value cache. A new sequence is prefilled separately and its cache padded to the
length of the batch; a finished one is removed. Each sequence has its own random generator, so its tokens do not depend
on the rest of the batch, except through rounding inside the model. For a sequence with a seed, `batch_invariant`
removes that too.

Knows nothing about asyncio, threads, chat or training. Works for models whose cache is plain keys and values.
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
    """One request being decoded."""

    prompt_ids: list[int]
    sampling: Sampling
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    stop_reason: str = ""
    """Empty while the sequence runs, then `stop` or `length`; `abort` if the request was cancelled."""
    weights_version: int = 0
    """Version of the weights that sampled the first token."""
    swaps: list[tuple[int, int]] = field(default_factory=list)
    """Weight updates: index of the first token that the new weights sampled, and their version."""
    random_numbers: list[float] = field(default_factory=list)
    """The random number that selected each token; a token that is decoded again gets the same one."""
    prompt_state: PromptState | None = None
    """The prompt prefilled alone; only for a sequence with a seed."""
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.sampling.seed)

    def append(self, token_id: int, log_prob: float) -> None:
        """Append a sampled token, and set the stop reason if it is the last one."""
        self.token_ids.append(token_id)
        self.log_probs.append(log_prob)
        if token_id in self.sampling.stop_token_ids:
            self.stop_reason = "stop"
        elif len(self.token_ids) >= self.sampling.max_tokens:
            self.stop_reason = "length"

    def next_random_number(self) -> float:
        """The random number that selects the next token."""
        if len(self.random_numbers) == len(self.token_ids):
            self.random_numbers.append(self.rng.random())
        return self.random_numbers[len(self.token_ids)]

    def record_swap(self, version: int) -> None:
        """Record that weights of this version sample the next token."""
        index = len(self.token_ids)
        if self.swaps and self.swaps[-1][0] == index:  # two updates between two tokens
            self.swaps.pop()
        self.swaps.append((index, version))


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
        """Prefill new sequences, sample their first token, and add them; return those that are already finished."""
        seeded = [[sequence] for sequence in sequences if sequence.sampling.seed is not None]
        unseeded = [sequence for sequence in sequences if sequence.sampling.seed is None]
        for group in [*seeded, unseeded] if unseeded else seeded:
            output, mask = self._prefill([sequence.prompt_ids for sequence in group])
            if group is not unseeded:
                group[0].prompt_state = PromptState.of(output)
            self._add(group, output.past_key_values, mask, _sample(output.logits[:, -1], group))
        return self.remove_finished()

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
    def recompute_cache(self) -> None:
        """Recompute keys and values after a weight update, so that no token is sampled from a mixture of versions."""
        if self.sequences:
            for sequence in self.sequences:
                sequence.prompt_state = None
            # The last token is not in the cache yet: the next step adds it.
            cached = [sequence.prompt_ids + sequence.token_ids[:-1] for sequence in self.sequences]
            output, self._mask = self._prefill(cached)
            self._cache = output.past_key_values

    @torch.inference_mode()
    def step(self) -> list[Sequence]:
        """Sample one token for every sequence; remove and return the finished ones."""
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
        return self.remove_finished()

    @torch.inference_mode()
    def remove_finished(self) -> list[Sequence]:
        """Remove and return the sequences that have a stop reason."""
        finished = [sequence for sequence in self.sequences if sequence.stop_reason]
        if not finished:
            return []
        self._keep([row for row, sequence in enumerate(self.sequences) if not sequence.stop_reason])
        for sequence in finished:
            if sequence.prompt_state is not None and sequence.stop_reason != "abort":
                self._resample_alone(sequence, sequence.prompt_state)
        return [sequence for sequence in finished if sequence.stop_reason]

    def _keep(self, keep: list[int]) -> None:
        self.sequences = [self.sequences[row] for row in keep]
        if not keep:
            self._cache = None
            return
        rows = torch.tensor(keep)
        mask = self._mask[rows]
        # Drop the columns that no remaining sequence attends to, so that the cache shrinks with its longest sequence.
        start = mask.shape[1] - int(mask.sum(1).max())
        for layer in self._cache.layers:
            layer.keys = layer.keys[rows][:, :, start:].contiguous()
            layer.values = layer.values[rows][:, :, start:].contiguous()
        self._mask, self._last = mask[:, start:], self._last[rows]

    def _resample_alone(self, sequence: Sequence, prompt_state: PromptState) -> None:
        """Replace the tokens with those sampled without the batch; a sequence that differs returns to the batch."""
        ids, log_probs = prompt_state.resample(
            self.model, sequence.token_ids, sequence.sampling, sequence.random_numbers
        )
        pairs = enumerate(zip(ids, sequence.token_ids, strict=True), start=1)
        length = next((count for count, (own, batched) in pairs if own != batched), len(ids))
        sequence.token_ids, sequence.log_probs, sequence.stop_reason = [], [], ""
        for token_id, log_prob in zip(ids[:length], log_probs, strict=False):
            sequence.append(token_id, log_prob)
        if sequence.stop_reason:
            return
        # Rounding in the batch changed a token, so the tokens after it are decoded again. The tokens before it do not
        # change any more, so this ends.
        output, mask = self._prefill([sequence.prompt_ids + sequence.token_ids[:-1]])
        self._add([sequence], output.past_key_values, mask, torch.tensor([sequence.token_ids[-1:]]))

    def _prefill(self, rows: list[list[int]]) -> tuple[Any, torch.Tensor]:
        """Run the model over prompts of any length, left-padded; returns its output and the attention mask."""
        longest = max(map(len, rows))
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        mask = torch.zeros(len(rows), longest, dtype=torch.long)
        for index, row in enumerate(rows):
            ids[index, longest - len(row) :] = torch.tensor(row)
            mask[index, longest - len(row) :] = 1
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        output = self.model(
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1
        )
        return output, mask


def check_model(model: Any) -> None:
    """Raise if the model's cache is not plain keys and values, which continuous batching needs."""
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
    """Sample one token per row, append it to its sequence, and return the ids as a column."""
    samplings = [sequence.sampling for sequence in sequences]
    ids, log_probs = sample_tokens(logits, samplings, [sequence.next_random_number() for sequence in sequences])
    for sequence, token_id, log_prob in zip(sequences, ids, log_probs, strict=True):
        sequence.append(token_id, log_prob)
    return torch.tensor(ids).unsqueeze(1)
