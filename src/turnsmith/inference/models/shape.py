"""The sizes of a model, read from its config.json; and how a built model is saved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnsmith.errors import ConfigError

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder-only transformer.

    Example:
        >>> sizes = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100, "intermediate_size": 128}
        >>> shape = ModelShape.of_config({**sizes, "num_attention_heads": 2, "tie_word_embeddings": True})
        >>> shape.parameters, shape.cache_values
        (88640, 256)
    """

    parameters: int
    active: int
    """Parameters that a token uses: in a mixture of experts, only those of the chosen experts."""
    layers: int
    hidden: int
    intermediate: int
    heads: int
    vocab: int
    cache_values: int
    """Keys and values of one token, in all layers."""
    positions: int = 0
    """Tokens of the longest sequence that it was made for; 0: not known."""

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> ModelShape:
        """From the content of a config.json; for a model with images, from its text part."""
        config = config.get("text_config", config)
        try:
            hidden, layers, vocab = (int(config[name]) for name in ("hidden_size", "num_hidden_layers", "vocab_size"))
            heads = int(config["num_attention_heads"])
        except (KeyError, TypeError) as error:
            raise ConfigError(
                f"The model's config.json has no {error}, so its size is unknown: it must be a "
                "decoder-only transformer."
            ) from None
        kv_heads = int(config.get("num_key_value_heads") or heads)
        size = int(config.get("head_dim") or hidden // heads)
        inner = int(config.get("moe_intermediate_size") or config.get("intermediate_size") or 4 * hidden)
        experts = int(next((config[name] for name in _EXPERTS if config.get(name)), 1))
        chosen = int(config.get("num_experts_per_tok") or 1) if experts > 1 else 1
        shared = int(config.get("n_shared_experts") or 0)
        dense = min(layers, int(config.get("first_k_dense_replace") or 0)) if experts > 1 else 0
        attention = hidden * size * (2 * heads + 2 * kv_heads)
        tables = vocab * hidden * (1 if config.get("tie_word_embeddings") else 2)
        rest = layers * (attention + 2 * hidden) + hidden + tables
        rest += dense * 3 * hidden * int(config.get("intermediate_size") or inner)
        every_expert = (layers - dense) * 3 * hidden * inner  # one of each layer
        return cls(
            parameters=rest + (experts + shared) * every_expert,
            active=rest + (chosen + shared) * every_expert,
            layers=layers,
            hidden=hidden,
            intermediate=inner * (chosen + shared),
            heads=heads,
            vocab=vocab,
            cache_values=2 * layers * kv_heads * size,
            positions=_positions(config),
        )

    @classmethod
    def of_model(cls, path: str, *, trust_remote_code: bool = False) -> ModelShape:
        """From a model's folder, or its Hugging Face id; with `trust_remote_code` it may bring code for its config."""
        from transformers import AutoConfig

        try:
            # Not read from the file, which leaves out the defaults of its class.
            config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        except (OSError, ValueError) as error:
            raise ConfigError(f"The config.json of {path} cannot be read: {error}") from None
        return cls.of_config(config.to_dict())

    def flops(self, tokens: float, length: float, logits: float | None = None) -> float:
        """Floating-point operations of a forward pass over rows of `length` tokens.

        Args:
            tokens: Number of tokens in all rows.
            length: Tokens in each row; attention grows with it.
            logits: Tokens for which the next one is predicted; None: all.
        """
        inside = self.active - self.vocab * self.hidden
        attention = 4 * self.layers * self.hidden * length
        return tokens * (2 * inside + attention) + 2 * self.vocab * self.hidden * (tokens if logits is None else logits)


def _positions(config: Mapping[str, Any]) -> int:
    """The tokens of the longest sequence, which RoPE scaling lengthens if it says so.

    Example:
        >>> _positions({"max_position_embeddings": 40960})
        40960
        >>> yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
        >>> _positions({"max_position_embeddings": 40960, "rope_scaling": yarn})
        131072
    """
    most = int(config.get("max_position_embeddings") or 0)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    first = (
        most
        if (rope.get("rope_type") or rope.get("type")) in ("linear", "dynamic")
        else rope.get("original_max_position_embeddings")
    )
    return max(most, int(float(rope.get("factor") or 1) * float(first or 0)))


def save_model(model: Any, tokenizer: Any, folder: str | Path) -> None:
    """Write a Hugging Face folder, without a progress bar and readable by every user of the machine."""
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    finally:
        if was_enabled:
            logging.enable_progress_bar()
    # safetensors writes files that only their owner can read, but a cache may be shared.
    for file in Path(folder).iterdir():
        file.chmod(0o644)


def tensors_in(file: Path) -> dict[str, dict[str, Any]]:
    """The tensors in a safetensors file by name, each with its `shape` and `data_offsets`, from its header."""
    with file.open("rb") as opened:
        header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
    header.pop("__metadata__", None)
    return header
