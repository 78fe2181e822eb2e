"""The seam between episodes and whatever generates tokens: one async method, token ids in, token ids out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample one turn."""

    max_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop_token_ids: tuple[int, ...] = ()
    """Sampling ends after one of these; the token itself is kept."""
    seed: int | None = None


@dataclass(slots=True)
class Generation:
    """What one call to an engine gave."""

    token_ids: Sequence[int]
    log_probs: Sequence[float]
    """One for each token id: the log-probability under the distribution it was sampled from."""
    stop_reason: str = "stop"
    """`stop`, `length` or `abort`."""
    weights_version: int = 0
    """The version of the weights that sampled the tokens, or the first of them."""
    exact: bool = True
    """Whether ids and log-probs are those that were sampled. False: the engine got only text, or log-probs of another
    distribution; the episode counts for evaluation, and training refuses it."""
    swaps: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    """Where new weights came in the middle of it: (index of the first token that they sampled, their version)."""


class Engine(Protocol):
    """Anything that generates. Concurrent calls are expected; the engine batches them as it sees fit."""

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
        """Continue `prompt_ids`. Calls of one episode share a `session`, so that a prefix cache can be reused."""
        ...
