"""Saves a model and its tokenizer to a folder, and reads what such a folder has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


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
