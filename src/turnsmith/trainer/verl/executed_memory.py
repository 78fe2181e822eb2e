"""Executes one update and the trainer's half of one weight sync on fake tensors, which have shapes and no content.

A program of its own, because verl chooses its platform when it is imported, and because the process group is a fake
one of the layout's size: `python -m turnsmith.trainer.verl.executed_memory` reads a layout from its input and prints
the bytes of one rank. It runs verl's own engine. The mesh is a CPU's, since torch without CUDA cannot compute gradients
of fake CUDA tensors; with `cuda`, the rules of autocast on CUDA and the attention operators that CUDA would choose are
applied where a user's code calls torch, so that what is kept for the backward pass has CUDA's type.
"""

from __future__ import annotations

import json
import os
import sys
import time
import weakref
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

os.environ |= {"VERL_PLATFORM": "cpu", "TURNSMITH_RUN": "1", "TURNSMITH_SHARED_PROMPTS": "0"}
import verl  # noqa: F401, I001  # pyright: ignore[reportUnusedImport]  (its plugins must load before anything of ours)
import torch
from tensordict import TensorDict
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import _engine_run_backward
from torch.distributed.tensor import DTensor
from torch.nested._internal.nested_tensor import NestedTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map_only
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import HFModelConfig

from turnsmith.trainer.verl.engines import LanguageModelEngine

_FLOAT32 = {"pow", "__pow__", "rsqrt", "reciprocal", "exp", "log", "logsumexp", "softplus", "layer_norm", "norm"}
"""What autocast on CUDA computes in float32: of the list in torch's documentation, what language models use."""
_FLOAT32_RESULT = {"prod", "softmax", "log_softmax", "cumprod", "cumsum", "sum"}
"""What autocast on CUDA computes into float32, without a copy of its argument."""


class StorageCount(TorchDispatchMode):
    """Bytes of all storages that live, as large as they are now: FSDP frees parameters by resizing their storage."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.operators = Counter[str]()
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, (DTensor, NestedTensor)) for kind in types):
            return NotImplemented  # their operations on plain tensors come here next; a DTensor itself has no bytes
        if func is torch.ops.aten._local_scalar_dense.default:
            return 1  # a fake tensor has no value; verl asks only for the loss, and whether the norm is finite
        found = func(*args, **(kwargs or {}))
        self.operators[str(func)] += "attention" in str(func)
        tree_map_only(torch.Tensor, self._see, found)
        return found

    def reset(self) -> int:
        """Begin a new peak, and return the last one."""
        last, self.peak = self.peak, self.now
        return last

    def resized(self, storage: Any) -> None:
        """Count a storage as large as it is now."""
        if (key := storage._cdata) in self._sizes:
            self._change(key, storage.nbytes())

    def _see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._sizes:
            self._change(storage._cdata, storage.nbytes())
            weakref.finalize(storage, self._gone, storage._cdata)

    def _change(self, key: int, size: int) -> None:
        self.now += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self.peak = max(self.peak, self.now)

    def _gone(self, key: int) -> None:
        self.now -= self._sizes.pop(key)


class CudaRules(TorchFunctionMode):
    """Applies what autocast and attention do on CUDA, above autograd. What runs in bfloat16 is the same on a CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention":
            return _attention(*args, **kwargs)
        if torch.is_autocast_enabled("cpu") and args:
            if name in _FLOAT32:
                args = tuple(one.float() if _is_short(one) else one for one in args)
            elif name in _FLOAT32_RESULT and kwargs.get("dtype") is None and _is_short(args[0]):
                kwargs["dtype"] = torch.float32
        return func(*args, **kwargs)


def _is_short(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16)


def _attention(query: Any, key: Any, value: Any, attn_mask: Any = None, **given: Any) -> Any:
    """The operator that CUDA takes: flash attention without a mask, otherwise the memory-efficient one."""
    if torch.is_autocast_enabled("cpu"):
        query, key, value = (one.to(torch.get_autocast_dtype("cpu")) for one in (query, key, value))
    shared, more = given.pop("enable_gqa", False), {"is_causal": False, "dropout_p": 0.0} | given
    if attn_mask is None and _is_short(query):
        return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, **more)[0]
    if shared:
        key, value = (one.repeat_interleave(query.size(1) // key.size(1), 1) for one in (key, value))
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.where(attn_mask, 0.0, torch.tensor(-torch.inf, dtype=query.dtype))
        if rest := -attn_mask.size(-1) % 16:  # the kernel wants aligned rows
            attn_mask = torch.nn.functional.pad(attn_mask, (0, rest))[..., :-rest]
        attn_mask = attn_mask.to(query.dtype).expand(*query.shape[:3], -1)
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    return efficient(query, key, value, attn_mask, query.requires_grad, **more)[0]


class FakeEngine(LanguageModelEngine):
    """verl's engine with a model that has no weights: its inputs are real, everything after them is fake."""

    fake: FakeTensorMode

    def prepare_model_inputs(self, micro_batch: TensorDict) -> Any:
        """verl looks into the inputs, so they have content until here."""
        with _disable_current_modes():
            given, more = super().prepare_model_inputs(micro_batch)
        return tree_map_only(torch.Tensor, self.fake.from_tensor, given), more

    def prepare_model_outputs(self, output: Any, **_: Any) -> Any:
        """Some numbers for each token; verl would select those that are no padding, which is not known here."""
        return {name: getattr(output, name) for name in ("log_probs", "entropy")}


def _lengths(config: Any, length: int) -> list[int]:
    """The tokens of the episodes of the largest micro-batch."""
    actor, model = config.actor_rollout_ref.actor, config.actor_rollout_ref.model
    if not actor.use_dynamic_bsz:
        rows = actor.ppo_micro_batch_size_per_gpu
        # A GPU would leave the mask out if no episode were padded.
        return [length] * (rows - 1) + [length - (rows > 1 and not model.use_remove_padding)]
    rows, rest = divmod(max(length, actor.ppo_max_token_len_per_gpu), length)
    return [length] * rows + [rest] * (rest > 0)


def _micro_batch(lengths: list[int], model: Any) -> TensorDict:
    made = [torch.nested.nested_tensor([torch.arange(one) for one in lengths], layout=torch.jagged)] * 2
    batch = TensorDict(dict(zip(("input_ids", "position_ids"), made, strict=True)), batch_size=[len(lengths)])
    given = {"use_remove_padding": model.use_remove_padding, "use_fused_kernels": model.use_fused_kernels}
    tu.assign_non_tensor(batch, **given, temperature=1.0, pad_token_id=0)
    return batch


def _engine(config: Any, model: str, fake: FakeTensorMode) -> FakeEngine:
    from transformers import AutoConfig

    section, actor = config.actor_rollout_ref.model, config.actor_rollout_ref.actor
    attention = section.override_config.attn_implementation
    found = AutoConfig.from_pretrained(
        model, trust_remote_code=section.trust_remote_code, attn_implementation=attention
    )
    with patch.object(HFModelConfig, "__post_init__", lambda _: None):  # it wants a tokenizer
        named = vars(omega_conf_to_dataclass(section))
    named |= {"hf_config": found, "local_path": model, "model_type": "language_model"}
    sharding, optimizer = (omega_conf_to_dataclass(one) for one in (actor.fsdp_config, actor.optim))
    described: Any = SimpleNamespace(**named)
    engine = FakeEngine(described, sharding, optimizer, actor.checkpoint)
    engine.fake = fake
    return engine


def _build(engine: Any) -> None:
    """Build the model and the optimizer as verl does, without loading weights."""
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    def make(*, config: Any, torch_dtype: Any, trust_remote_code: bool, **_: Any) -> Any:
        with no_init_weights():
            model = AutoModelForCausalLM.from_config(config, dtype=torch_dtype, trust_remote_code=trust_remote_code)
        model.tie_weights()
        return model

    with (
        patch("verl.utils.model.get_hf_auto_model_class", lambda **_: SimpleNamespace(from_pretrained=make)),
        patch("verl.workers.engine.fsdp.transformer_impl.fsdp2_load_full_state_dict", lambda *_: None),
    ):
        engine._build_model_optimizer()


@contextmanager
def _executing(count: StorageCount, fake: FakeTensorMode, lengths: list[int]) -> Generator[None]:
    """Compute with fake tensors, and count them."""
    resize = torch.UntypedStorage.resize_

    def resized(storage: Any, size: int) -> Any:
        resize(storage, size)
        count.resized(storage)
        return storage

    stays = patch.object(torch.nn.Module, "to", lambda module, *_, **__: module)  # fake weights cannot be moved
    known = patch("turnsmith.trainer.verl.packed_attention.lengths_of", lambda _: lengths)
    with patch.object(torch.UntypedStorage, "resize_", resized), stays, known, fake, count:
        yield


def executed_bytes(config: Any, model: str, length: int, *, is_cuda: bool = True) -> dict[str, Any]:
    """Bytes of one rank.

    Args:
        config: verl's config of the run.
        model: Folder with a config.json, or the model's name at Hugging Face.
        length: Tokens of an episode.
        is_cuda: As on CUDA; otherwise as on a CPU.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    actor, lengths = config.actor_rollout_ref.actor, _lengths(config, length)
    batch = _micro_batch(lengths, config.actor_rollout_ref.model)
    share = actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n // ranks
    count, fake = StorageCount(), FakeTensorMode(allow_non_fake_inputs=True)
    engine = _engine(config, model, fake)
    with _executing(count, fake, lengths), CudaRules() if is_cuda else nullcontext():
        _build(engine)
        found = _update(engine, count, batch, bool(actor.entropy_coeff), share > len(lengths))
        found["rest"] = count.now
        count.reset()
        for _ in engine.get_per_tensor_param()[0]:
            pass
        found["sync"] = count.reset()
    # verl moves to the host, between updates, what the mesh of a CPU cannot tell from memory of the GPU.
    found["rest"] -= found["parameters"] * engine._is_offload_param + found["optimizer"] * engine._is_offload_optimizer
    operators = {name: number for name, number in count.operators.items() if number}
    return found | {"operators": operators, "tokens": sum(lengths), "seconds": time.process_time()}


def _update(engine: Any, count: StorageCount, batch: TensorDict, entropy: bool, again: bool) -> dict[str, Any]:
    """An update in which the optimizer has its state already; if `again`, a micro-batch has left gradients, too."""
    parameters = [one for one in engine.module.parameters() if one.requires_grad]
    for one in parameters:
        one.grad = torch.zeros_like(one)
    for group in engine.optimizer.param_groups:
        group["foreach"] = True  # as torch chooses on CUDA
    engine.optimizer_step()
    if not again:
        engine.optimizer_zero_grad()
    engine.module.train()
    names = ("log_probs", "entropy")[: 1 + entropy]
    count.reset()
    kept_whole = again and engine.engine_config.use_no_sync_for_gradient_accumulation
    for is_last in (False, True) if kept_whole else (True,):
        with engine._gradient_sync_context(is_last_micro_batch=is_last):
            loss = engine.forward_step(batch, lambda model_output, **_: (_sum(model_output, names), {}), False)[0]
            # As `backward()`, in which the rules of CUDA would not hold for what is computed again.
            _engine_run_backward((loss,), (torch.ones_like(loss),), False, False, (), True, True)
            del loss
    gradients = _bytes(one.grad for one in parameters)
    engine.optimizer_step()
    engine.optimizer_zero_grad()
    states = _bytes(value for state in engine.optimizer.state.values() for value in state.values())
    whole = {"parameters": _bytes(engine.module.parameters()), "gradients": gradients, "optimizer": states}
    return whole | {"update": count.reset()}


def _sum(outputs: dict[str, Any], names: Iterable[str]) -> Any:
    return sum(outputs[name].sum() for name in names)


def _bytes(tensors: Iterable[Any]) -> int:
    """Bytes that this rank has of some tensors."""
    local = (one.to_local() if isinstance(one, DTensor) else one for one in tensors if one is not None)
    return sum({one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in local}.values())


if __name__ == "__main__":
    from turnsmith.config_sources import from_dict
    from turnsmith.trainer.config.check import verl_config

    given = json.load(sys.stdin)
    composed = verl_config(from_dict(given["settings"]), model_path=given["model"])
    sys.stdout.write("\n" + json.dumps(executed_bytes(composed, given["model"], given["length"])) + "\n")
