"""The model's own settings for generation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_NAME = "generation_config.json"


def generation_config(model_path: str | None) -> dict[str, Any]:
    """What a model's generation_config.json sets; empty if there is none on this machine. Downloads nothing.

    Example:
        >>> from turnsmith.models import resolve
        >>> generation_config(resolve("tiny"))["eos_token_id"]
        2
    """
    if model_path is None:
        return {}
    file: Any = Path(model_path, _NAME)
    if not file.is_file():
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        try:
            file = try_to_load_from_cache(model_path, _NAME)
        except HFValidationError:  # a folder, and no id
            return {}
    try:
        return json.loads(Path(file).read_text()) if isinstance(file, (str, Path)) else {}
    except (OSError, ValueError):
        return {}
