"""Write a model and its tokenizer into a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def save(model: Any, tokenizer: Any, folder: str | Path) -> None:
    """Write a plain Hugging Face folder, without a progress bar and readable by every user of the machine."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    finally:
        if shown:
            logging.enable_progress_bar()
    # safetensors writes files that only their owner can read; a cache may be shared.
    for file in Path(folder).iterdir():
        file.chmod(0o644)
