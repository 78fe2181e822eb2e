"""Attention over episodes that stand one after the other in one row, without padding and without flash-attn.

transformers' own `sdpa` needs a mask for such a row, of as many entries as the row has tokens, squared, and computes
attention between episodes only to mask it. This one calls PyTorch's attention for each episode: no mask, so that on a
GPU PyTorch takes its flash kernel, and no work between episodes. The same code runs on a CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from turnsmith.inference.auto import PACKED_SDPA

_last: tuple[torch.Tensor | None, list[int]] = (None, [])
"""The positions that were read last, and their lengths: all layers of a forward pass get the same ones, and reading
them waits for the GPU."""


def lengths_of(positions: torch.Tensor) -> list[int]:
    """The tokens of each episode in a row of positions, which begin at 0 again with each.

    Example:
        >>> lengths_of(torch.tensor([[0, 1, 2, 0, 1, 0]]))
        [3, 2, 1]
    """
    global _last
    if _last[0] is not positions:
        begins = (positions.flatten() == 0).nonzero().flatten().tolist()
        _last = positions, [end - begin for begin, end in zip(begins, [*begins[1:], positions.numel()], strict=True)]
    return _last[1]


def packed_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    position_ids: torch.Tensor,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each episode; by the interface of transformers' attention functions."""
    lengths = lengths_of(position_ids)
    found: list[torch.Tensor] = []
    rows = (each.split(lengths, dim=2) for each in (query, key, value))
    for length, one, its_key, its_value in zip(lengths, *rows, strict=True):
        mask = None
        if sliding_window is not None and length > sliding_window:
            sees = torch.ones(length, length, dtype=torch.bool, device=query.device)
            mask = sees.tril().triu(1 - sliding_window)[None, None]
        found.append(sdpa_attention_forward(module, one, its_key, its_value, mask, is_causal=True, **options)[0])
    return torch.cat(found, dim=1), None


def register() -> None:
    """Make it known to transformers, which makes no mask for attention that is not its own."""
    ALL_ATTENTION_FUNCTIONS.register(PACKED_SDPA, packed_attention)
