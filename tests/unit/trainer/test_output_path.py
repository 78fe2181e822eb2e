"""What the trainer's output path needs at the default settings of a GPU, counted on tensors without content.

From hidden states to log-probs, entropy and gradients, as verl computes them: with its fused kernels, and from all
logits, which is what a GPU without flash-attn did before.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

os.environ.setdefault("VERL_PLATFORM", "cpu")

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from verl.utils import torch_functional
from verl.utils.experimental.torch_functional import FusedLinearForPPO

from turnsmith.config import ConfigStore
from turnsmith.trainer.config.layout import micro_batch_tokens

EPISODES, VOCABULARY = 8, 151_936
HIDDEN = {"Qwen3-0.6B": 1024, "Qwen3-8B": 4096}


class Counter(TorchDispatchMode):
    """Counts operations, and the bytes of storages that are alive, apart from those of `left_out`."""

    def __init__(self, *left_out: tuple[int, ...]) -> None:
        super().__init__()
        self.operations = self.now = self.peak = 0
        self._left_out = left_out
        self._alive: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        made = func(*args, **(kwargs or {}))
        tree_map(self._see, made)
        return made

    def _see(self, one: Any) -> None:
        if not isinstance(one, torch.Tensor) or tuple(one.shape) in self._left_out:
            return
        storage = one.untyped_storage()
        if storage._cdata not in self._alive:
            self._alive.add(storage._cdata)
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._free, storage._cdata, storage.nbytes())

    def _free(self, key: int, size: int) -> None:
        self._alive.discard(key)
        self.now -= size


def counted(hidden: int, tokens: int, *, fused: bool) -> tuple[float, float]:
    """Bytes per logit at the peak, and operations per token, forward and backward."""
    weight = torch.empty(VOCABULARY, hidden, dtype=torch.bfloat16, device="meta", requires_grad=True)
    states = torch.empty(1, tokens, hidden, dtype=torch.bfloat16, device="meta", requires_grad=True)
    ids = torch.zeros(1, tokens, dtype=torch.long, device="meta")
    with Counter((VOCABULARY, hidden), (hidden, VOCABULARY)) as counter:
        if fused:
            log_probs, entropy = FusedLinearForPPO(impl_backend="torch").forward(states, weight, ids, temperature=1.0)
        else:
            logits = (states @ weight.T).squeeze(0)
            entropy = torch_functional.entropy_from_logits(logits.float())  # CUDA's autocast casts softmax
            log_probs = torch_functional.logprobs_from_logits_v2(logits, ids.squeeze(0))
        (log_probs.sum() + entropy.sum()).backward()
    return counter.peak / (tokens * VOCABULARY), counter.operations / tokens


@pytest.mark.parametrize("model", HIDDEN)
def test_less_than_a_byte_per_logit_and_a_fifth_of_an_operation_per_token(model: str) -> None:
    config = ConfigStore()
    config.model.device = "cuda"
    tokens = EPISODES * 3072
    assert micro_batch_tokens(config) < tokens  # so that a forward pass of a run is no larger
    for size in (tokens, micro_batch_tokens(config)):
        bytes_per_logit, operations = counted(HIDDEN[model], size, fused=True)
        print(f"{model}, {size} tokens: {bytes_per_logit:.2f} bytes per logit, {operations:.3f} operations per token")
        assert bytes_per_logit < 1
        assert operations < 0.2


def test_the_count_sees_what_all_logits_need() -> None:
    bytes_per_logit, operations = counted(HIDDEN["Qwen3-0.6B"], 256, fused=False)
    assert bytes_per_logit > 8
    assert operations > 10
