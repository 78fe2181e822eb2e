"""Writes trained weights as a Hugging Face folder: the whole model, or the LoRA adapter alone.

verl can write one with each checkpoint, but labels it bfloat16 whatever it is, and with LoRA uses names that
transformers does not know and initialises at random. Knows nothing of a checkpoint but its `actor/`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from turnsmith.errors import RecordError
from turnsmith.trainer.checkpoints.fsdp_shards import merge_shards

_PREFIX = "base_model.model."
_LORA_A, _LORA_B = ".lora_A.default.weight", ".lora_B.default.weight"
_OURS = ("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json")


def write_model(actor: Path, target: Path, *, dtype: str | None = None, trust_remote_code: bool = False) -> None:
    """Write the whole model, with an adapter merged into it, and its tokenizer and chat template.

    Args:
        actor: A checkpoint's folder `actor`.
        target: The folder to write; may be `huggingface` in `actor`, which has everything but the weights.
        dtype: Such as `bfloat16`; None: as it was trained.
        trust_remote_code: Whether to run Python code that comes with the model.
    """
    import torch

    model = _empty_model(actor / "huggingface", trust_remote_code)
    weights = _untied(_merged(merge_shards(actor), actor, model), model)
    if dtype is not None:
        wanted = getattr(torch, dtype)
        weights = {name: one.to(wanted) if one.is_floating_point() else one for name, one in weights.items()}
    # transformers writes the dtype of this model, which has no weights, into the config.
    model.to(next(one.dtype for one in weights.values() if one.is_floating_point()))
    _copy_rest(actor / "huggingface", target)
    with _no_progress_bar():
        model.save_pretrained(target, state_dict=weights)
    _readable(target)


def write_adapter(actor: Path, target: Path, *, base_model: str) -> None:
    """Write the LoRA adapter alone, as PEFT and vLLM load it; `base_model` is the model it was trained on.

    Raises:
        RecordError: The run trained all weights.
    """
    from peft import LoraConfig
    from safetensors.torch import save_file

    meta = _lora_meta(actor)
    if meta is None:
        raise RecordError("This run trained all weights, so there is no adapter: leave out --adapter.")
    pairs = {
        name.replace(".default.", "."): one.contiguous()
        for name, one in merge_shards(actor).items()
        if name.endswith((_LORA_A, _LORA_B))
    }
    target.mkdir(parents=True, exist_ok=True)
    LoraConfig(
        base_model_name_or_path=base_model,
        task_type=meta["task_type"],
        r=meta["r"],
        lora_alpha=meta["lora_alpha"],
        target_modules=sorted({name.split(".")[-3] for name in pairs}),
        inference_mode=True,
    ).save_pretrained(str(target))
    save_file(pairs, target / "adapter_model.safetensors", metadata={"format": "pt"})
    _copy_rest(actor / "huggingface", target)
    _readable(target)


def _empty_model(folder: Path, trust_remote_code: bool) -> Any:
    """The model without weights, for its parameter names and `save_pretrained`."""
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    vars(config).pop("attn_implementation", None)  # how it was trained here says nothing about how to run it
    named = getattr(transformers, (config.architectures or [""])[0], None)
    # The name comes from the checkpoint: make sure that it is a model class, and not anything else callable.
    is_model = isinstance(named, type) and issubclass(named, transformers.PreTrainedModel)
    with torch.device("meta"):
        if named is not None and is_model and not (trust_remote_code and getattr(config, "auto_map", None)):
            model = named(config)
        else:
            model = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    if model.can_generate() and (folder / "generation_config.json").is_file():
        model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    return model


def _merged(weights: dict[str, Any], actor: Path, model: Any) -> dict[str, Any]:
    """The weights under the model's own names, with an adapter merged as PEFT does: W + (B A) alpha / r."""
    meta = _lora_meta(actor)
    if meta is None:
        return weights
    merged: dict[str, Any] = {}
    for name, one in weights.items():
        if "lora_" in name:
            if not name.endswith((_LORA_A, _LORA_B)):
                raise RecordError(f"{name} belongs to a kind of adapter that turnsmith cannot merge: use --adapter.")
            continue
        layer = name.removesuffix(".base_layer.weight")
        own = name.removeprefix(_PREFIX).replace(".base_layer.", ".")
        if layer + _LORA_A in weights:
            change = weights[layer + _LORA_B] @ weights[layer + _LORA_A]
            if type(model.get_submodule(layer.removeprefix(_PREFIX))).__name__ == "Conv1D":
                change = change.T  # GPT-2's layers store their weights transposed
            one = one + change * (meta["lora_alpha"] / meta["r"])
        merged[own] = one
    return merged


def _untied(weights: dict[str, Any], model: Any) -> dict[str, Any]:
    """Drop the second name of a tied weight: written under both, transformers would no longer tie them."""
    model.tie_weights()
    first = {name for name, _ in model.named_parameters()}
    second = {name for name, _ in model.named_parameters(remove_duplicate=False)} - first
    missing = first - weights.keys()
    if missing:
        raise RecordError(f"The checkpoint has no weights called {min(missing)}: does it belong to another model?")
    return {name: one.contiguous() for name, one in weights.items() if name not in second}


def _lora_meta(actor: Path) -> dict[str, Any] | None:
    file = actor / "lora_train_meta.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def _copy_rest(source: Path, target: Path) -> None:
    """Copy the tokenizer, the chat template, and code that comes with the model."""
    target.mkdir(parents=True, exist_ok=True)
    if source.resolve() != target.resolve():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(*_OURS), dirs_exist_ok=True)


@contextmanager
def _no_progress_bar() -> Generator[None]:
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _readable(folder: Path) -> None:
    # safetensors writes files that only their owner can read
    for file in folder.rglob("*"):
        if file.is_file():
            file.chmod(0o644)
