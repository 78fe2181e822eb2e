"""The interface between episodes and inference engines: one async method, token ids in, token ids out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of one turn.

    Example:
        >>> Sampling(max_tokens=64, temperature=0.7).top_k
        -1
    """

    max_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop_token_ids: tuple[int, ...] = ()
    """Sampling ends after any of these; the stop token itself is kept."""
    seed: int | None = None


@dataclass(slots=True)
class Generation:
    """The result of one call to an engine.

    Example:
        >>> Generation([5, 2], [-0.1, -0.5]).stop_reason
        'stop'
    """

    token_ids: Sequence[int]
    log_probs: Sequence[float]
    """Log-probability of each token under the distribution it was sampled from."""
    stop_reason: str = "stop"
    """`stop`, `length` or `abort`."""
    weights_version: int = 0
    """Version of the weights that sampled the first token."""
    exact: bool = True
    """Whether the ids and log-probs are exactly those sampled. False if a server returned only text, or log-probs of
    another distribution; such an episode counts for evaluation, but training rejects it."""
    swaps: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    """Weight updates during the generation: (index of the first token that the new weights sampled, their version)."""

    def check(self, sampling: Sampling) -> None:
        """Raise a `ValueError` if this cannot be the answer to a request with these parameters."""
        if self.stop_reason == "abort":
            raise ValueError("the engine aborted the turn")
        if self.stop_reason not in ("stop", "length"):
            raise ValueError(f"the engine ended the turn with the unknown stop reason {self.stop_reason!r}")
        tokens = len(self.token_ids)
        if not 0 < tokens <= sampling.max_tokens:
            raise ValueError(f"the engine returned {tokens} tokens; 1 to {sampling.max_tokens} were requested")
        if not math.isfinite(sum(self.log_probs)):
            raise ValueError("the engine returned a log-prob that is not finite")


class Engine(Protocol):
    """Anything that generates tokens. Calls come concurrently; the engine batches them as it sees fit.

    Example:
        >>> class AlwaysYes:
        ...     async def generate(self, prompt_ids, sampling, *, session):
        ...         return Generation([7], [0.0])
        >>> import asyncio
        >>> asyncio.run(AlwaysYes().generate([1, 2], Sampling(), session="episode-1")).token_ids
        [7]
    """

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
        """Continue `prompt_ids`. All calls of an episode share a `session`, so that the engine can reuse its prefix
        cache.
        """
        ...


def engine_name(engine: Any) -> str:
    """The class that the user knows: our wrappers hold the engine in `inner`."""
    while hasattr(engine, "inner"):
        engine = engine.inner
    return type(engine).__name__
