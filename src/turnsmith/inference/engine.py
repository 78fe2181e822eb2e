"""The interface between episodes and inference engines: one async method, token ids in, token ids out."""

from __future__ import annotations

import math
import zlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from turnsmith.errors import EngineFailure


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
        """Raise an `EngineFailure` if this cannot be the answer to a request with these parameters."""
        if self.stop_reason == "abort":
            raise EngineFailure("the engine aborted the turn")
        if self.stop_reason not in ("stop", "length"):
            raise EngineFailure(f"the engine ended the turn with the unknown stop reason {self.stop_reason!r}")
        tokens, log_probs = len(self.token_ids), len(self.log_probs)
        if not 0 < tokens <= sampling.max_tokens:
            raise EngineFailure(f"the engine returned {tokens} tokens; 1 to {sampling.max_tokens} were requested")
        if tokens != log_probs:
            raise EngineFailure(f"the engine returned {tokens} token ids but {log_probs} log-probs: one for each")
        if not _holds(lambda: min(array("i", self.token_ids)) >= 0):
            raise EngineFailure("the engine returned invalid token ids")
        if not _holds(lambda: math.isfinite(sum(array("f", self.log_probs)))):
            raise EngineFailure("the engine returned a log-prob that is not a number")


def _holds(check: Callable[[], bool]) -> bool:
    try:
        return check()
    except (TypeError, ValueError, OverflowError):
        return False


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


def derived_seed(seed: int | None, *parts: object) -> int | None:
    """A seed of its own for each of `parts`, the same when a run is repeated; None stays None.

    Example:
        >>> derived_seed(1, "episode-1", 0) == derived_seed(1, "episode-1", 1), derived_seed(None, 2)
        (False, None)
    """
    return None if seed is None else zlib.crc32("/".join(map(str, (seed, *parts))).encode())


def engine_name(engine: Any) -> str:
    """The class that the user knows: our wrappers hold the engine in `inner`."""
    while hasattr(engine, "inner"):
        engine = engine.inner
    return type(engine).__name__
