"""The model's own settings for generation."""

from __future__ import annotations

from typing import Any

from turnsmith.config import ConfigStore
from turnsmith.models import resolve


def generation_config(config: ConfigStore) -> dict[str, Any]:
    """What the model's generation_config.json sets; empty if it has none here. Downloads nothing.

    Example:
        >>> config = ConfigStore()
        >>> config.model.model_name = "tiny"
        >>> generation_config(config)["eos_token_id"]
        2
    """
    from transformers import GenerationConfig

    path = config.model.local_path or resolve(config.model.model_name)
    try:
        return GenerationConfig.from_pretrained(path, local_files_only=True).to_diff_dict()
    except (OSError, ValueError):
        return {}
