"""The model's own files, without loading it: settings for generation, and how many parameters it has."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

from turnsmith.errors import ConfigError
from turnsmith.inference.models.shape import ModelShape, tensors_in


def model_file(model_path: str | None, name: str) -> Path | None:
    """A file of a model, if it is on this machine; downloads nothing."""
    if not model_path:
        return None
    if (file := Path(model_path, name)).is_file():
        return file
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(model_path, name)
    except HFValidationError:  # a folder, and no id
        return None
    return Path(found) if isinstance(found, str) else None


def generation_config(model_path: str | None) -> dict[str, Any]:
    """What a model's generation_config.json sets; empty if there is none on this machine. Downloads nothing.

    Example:
        >>> from turnsmith.inference.models import resolve
        >>> generation_config(resolve("tiny"))["eos_token_id"]
        2
    """
    file = model_file(model_path, "generation_config.json")
    try:
        return json.loads(file.read_text()) if file is not None else {}
    except (OSError, ValueError):
        return {}


def count_parameters(model: str | None) -> int:
    """The number of parameters, from the headers of the safetensors files or else from config.json; 0 if unknown.

    Nothing is downloaded for a Hugging Face id, and transformers is not imported, because `fit()` waits for this.
    """
    if not model:
        return 0
    found = sum(
        prod(tensor["shape"]) for file in Path(model).glob("*.safetensors") for tensor in tensors_in(file).values()
    )
    if found:
        return found
    if (file := model_file(model, "config.json")) is None:
        return 0
    try:
        return ModelShape.of_config(json.loads(file.read_text(encoding="utf-8"))).parameters
    except (OSError, ValueError, ConfigError):
        return 0
