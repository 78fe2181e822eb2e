"""Models that turnsmith makes itself, so that a first run needs no account and no model hub.

`tiny` is a random model that takes a second to make; `smollm2` is a real chat model with 135 million weights. Each is
made once and kept in a cache folder: `$TURNSMITH_CACHE/models`, else `$XDG_CACHE_HOME/turnsmith/models`, else
`~/.cache/turnsmith/models`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from turnsmith.errors import ConfigError

__all__ = ["BUILT_MODELS", "cache_folder", "resolve"]

BUILT_MODELS: dict[str, str] = {"tiny": "tiny-v1", "smollm2": "smollm2-135m-instruct-v1"}
"""Name of each model that turnsmith makes, and of its folder in the cache. Change the folder's name with the recipe, so
that a model made by an older version is not taken for the new one."""


def resolve(model_name_or_path: str, local_path: str | None = None) -> str:
    """Where to load a model from: a folder, or an id of the Hugging Face hub.

    Args:
        model_name_or_path: `tiny`, `smollm2`, a folder, or a hub id.
        local_path: A folder that wins over the name.

    Returns:
        A folder for a model on this machine, else the hub id as it was given.

    Raises:
        ConfigError: If the folder is not there or holds no model.
        MissingDependency: If a package that making the model takes is not installed, or can't be downloaded.

    Example:
        >>> resolve("Qwen/Qwen3-0.6B")
        'Qwen/Qwen3-0.6B'
    """
    if local_path is not None:
        return _checked_folder(local_path)
    if model_name_or_path in BUILT_MODELS:
        return str(_built_once(model_name_or_path))
    if Path(model_name_or_path).expanduser().is_dir() or _can_only_be_a_path(model_name_or_path):
        return _checked_folder(model_name_or_path)
    return model_name_or_path


def cache_folder() -> Path:
    """The folder in which the models that turnsmith makes are kept. It may not exist yet."""
    own = os.environ.get("TURNSMITH_CACHE")
    if own:
        return Path(own).expanduser() / "models"
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "turnsmith" / "models"


def _can_only_be_a_path(name: str) -> bool:
    return name.startswith(("/", "./", "../", "~"))


def _checked_folder(path: str) -> str:
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"The model folder {path} does not exist.")
    if not (folder / "config.json").is_file():
        raise ConfigError(f"The folder {path} holds no model: it has no config.json.")
    return str(folder)


def _built_once(name: str) -> Path:
    """The cached model, made now if it is not there.

    It is made beside its place and renamed, so a folder under the final name is always complete. Of several processes
    that make the same model at once, the first to finish wins and the others use its folder.
    """
    folder = cache_folder() / BUILT_MODELS[name]
    if folder.is_dir():
        return folder
    # Imported here: making a model needs torch, using a made one does not.
    build: Callable[[Path], None] = getattr(import_module(f"turnsmith.models.{name}"), f"build_{name}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        build(beside)
        # mkdtemp makes a folder for its owner only; a shared cache must be readable by others.
        beside.chmod(0o755)
        try:
            beside.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder
