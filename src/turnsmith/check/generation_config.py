"""The model's own files: its settings for generation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


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
        >>> from turnsmith.models import resolve
        >>> generation_config(resolve("tiny"))["eos_token_id"]
        2
    """
    file = model_file(model_path, "generation_config.json")
    try:
        return json.loads(file.read_text()) if file is not None else {}
    except (OSError, ValueError):
        return {}
