"""Samples tokens from logits: temperature, top-k, top-p, and one random number per token."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from turnsmith.errors import EngineFailure
from turnsmith.inference.engine import Sampling


def sample_tokens(
    logits: torch.Tensor, samplings: Sequence[Sampling], random_numbers: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Sample one token per row, by inverting the cumulative distribution.

    Args:
        logits: `(rows, vocabulary)`.
        samplings: Sampling parameters of each row.
        random_numbers: One per row, from [0, 1): the same logits and number give the same token.

    Returns:
        The token ids and their log-probs, after temperature, top-k and top-p.

    Example:
        >>> sample_tokens(torch.tensor([[0.0, 0.0]]), [Sampling()], [0.75])
        ([1], [-0.6931471824645996])
    """
    logits = logits.float()
    temperature = torch.tensor([sampling.temperature for sampling in samplings]).unsqueeze(1)
    greedy = temperature == 0
    log_probs = torch.log_softmax(logits / temperature.masked_fill(greedy, 1.0), dim=-1)
    log_probs = _truncate(log_probs, samplings)
    cumulative = log_probs.double().exp().cumsum(-1)
    total = cumulative[:, -1:].contiguous()
    if total.isnan().any():
        raise EngineFailure("The model's logits are NaN: its weights are broken, or overflow in this dtype.")
    # Kept below the total, so that rounding never selects past the last token with non-zero probability.
    targets = torch.tensor(random_numbers, dtype=torch.float64).unsqueeze(1) * total
    targets = torch.minimum(targets, total.nextafter(torch.zeros_like(total)))
    sampled = torch.searchsorted(cumulative, targets, right=True)
    ids = torch.where(greedy, logits.argmax(-1, keepdim=True), sampled)
    return ids[:, 0].tolist(), log_probs.gather(1, ids)[:, 0].tolist()


def _truncate(log_probs: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    """Apply top-k and top-p and renormalise; rows with neither are unchanged."""
    for row, sampling in enumerate(samplings):
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
