"""Hypothesis strategies for batches: masks with observation gaps, rewards from constants to NaN, groups of any size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

CHECKED = settings(max_examples=40, deadline=None)
"""Enough for every kind of reward and mask; no deadline, because the machine may be busy."""
REWARDS = {
    "few": st.sampled_from([0.0, 0.0, 1.0, -1.0, 0.5]),
    "any": st.floats(-10, 10, width=32),
    "close": st.sampled_from([0.0, 1e-8, 2e-8, -1e-8]),
    "large": st.floats(-1e8, 1e8, width=32),
    "broken": st.sampled_from([0.0, 1.0, 2.0, float("nan"), float("inf"), float("-inf")]),
}


@dataclass
class Batch:
    """Lists for the reference, tensors for the package."""

    rewards: list[list[float]]
    values: list[list[float]]
    mask: list[list[int]]
    index: list[str]
    dtype: torch.dtype = torch.float32
    mask_dtype: torch.dtype = torch.int64

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        mask = torch.tensor(self.mask).to(self.mask_dtype)
        return torch.tensor(self.rewards, dtype=self.dtype), torch.tensor(self.values, dtype=self.dtype), mask


def rows(draw: st.DrawFn, element: st.SearchStrategy, episodes: int, tokens: int) -> list[list]:
    flat = draw(st.lists(element, min_size=episodes * tokens, max_size=episodes * tokens))
    return [flat[row * tokens : (row + 1) * tokens] for row in range(episodes)]


@st.composite
def batches(draw: st.DrawFn, kinds: tuple[str, ...] = tuple(REWARDS)) -> Batch:
    episodes, tokens = draw(st.integers(1, 8)), draw(st.integers(1, 12))
    reward = REWARDS[draw(st.sampled_from(kinds))]
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    rewards = torch.tensor(rows(draw, reward, episodes, tokens), dtype=dtype).double().tolist()
    values = rows(draw, st.floats(-5, 5, width=32), episodes, tokens)
    mask = rows(draw, st.sampled_from([0, 1, 1]), episodes, tokens)
    index = draw(st.lists(st.sampled_from("abc"), min_size=episodes, max_size=episodes))
    mask_dtype = draw(st.sampled_from([torch.bool, torch.int64, torch.float32, torch.float64]))
    return Batch(rewards, values, mask, index, dtype, mask_dtype)


def close(actual: Tensor, expected: list, scale: float = 1.0, tolerance: float | None = None) -> None:
    """Near the reference: within float32's or float64's rounding of numbers as large as `scale`."""
    tolerance = tolerance or (1e-11 if actual.dtype == torch.float64 else 5e-6)
    wanted = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(actual.double(), wanted, rtol=tolerance, atol=tolerance * max(scale, 1e-30))


def largest(numbers: list[list[float]]) -> float:
    return max((abs(x) for row in numbers for x in row if abs(x) < float("inf")), default=0.0)
