"""Models that turnsmith builds itself, so that a first run needs no account and no model hub.

`tiny` is a random model, built in a second; `smollm2` is a real chat model with 135 million parameters. Each is built
once and cached in a folder: `$TURNSMITH_CACHE/models`, else `$XDG_CACHE_HOME/turnsmith/models`, else
`~/.cache/turnsmith/models`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

from turnsmith.errors import ConfigError

__all__ = ["BUILT_MODELS", "cache_folder", "check_name", "closest_model", "resolve"]

BUILT_MODELS: dict[str, str] = {"tiny": "tiny-v1", "smollm2": "smollm2-135m-instruct-v1"}
"""The models that turnsmith builds, and their folders in the cache. When a recipe changes, rename the folder, so that a
model built by an older version is not mistaken for the new one."""


def resolve(model_name_or_path: str, local_path: str | None = None, shared: Path | None = None) -> str:
    """Find the folder or Hugging Face id to load a model from; `tiny` and `smollm2` are built if needed.

    Args:
        model_name_or_path: `tiny`, `smollm2`, a folder, or a Hugging Face id.
        local_path: A folder that takes precedence over the name.
        shared: A folder that other machines can read too. A model that is built is then used from there, because
            other machines cannot read this machine's cache.

    Returns:
        The folder of a model on this machine, or the Hugging Face id unchanged.

    Raises:
        ConfigError: If there is no such folder, it holds no model, or no model can have this name.
        MissingDependency: If a package needed to build the model is not installed, or cannot be downloaded.

    Example:
        >>> resolve("Qwen/Qwen3-0.6B")
        'Qwen/Qwen3-0.6B'
        >>> resolve("tinny")
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: There is no model 'tinny': it is neither a folder nor one that turnsmith builds \
(tiny, smollm2). Write a Hugging Face id with its owner, as in Qwen/Qwen3-0.6B. Did you mean tiny?
    """
    if local_path is not None:
        return _check_folder(local_path)
    if model_name_or_path in BUILT_MODELS:
        built = _build_once(model_name_or_path)
        return str(built if shared is None else _copy_once(built, shared.expanduser().absolute() / built.name))
    if Path(model_name_or_path).expanduser().is_dir() or _is_explicit_path(model_name_or_path):
        return _check_folder(model_name_or_path)
    check_name(model_name_or_path)
    return model_name_or_path


def check_name(name: str) -> None:
    """Raise a ConfigError for a name that is no built model, no folder and no Hugging Face id.

    Example:
        >>> check_name("tiny"), check_name("Qwen/Qwen3-0.6B")
        (None, None)
    """
    if name not in BUILT_MODELS and "/" not in name and not Path(name).expanduser().is_dir():
        raise ConfigError(
            f"There is no model {name!r}: it is neither a folder nor one that turnsmith builds "
            f"({', '.join(BUILT_MODELS)}). Write a Hugging Face id with its owner, as in Qwen/Qwen3-0.6B."
            f"{closest_model(name)}"
        )


def closest_model(name: str) -> str:
    """A question that names the model built by turnsmith, or the folder, whose name is closest; empty if none is."""
    path = Path(name).expanduser()
    try:
        folders = [str(path.parent / folder.name) for folder in path.parent.iterdir() if folder.is_dir()]
    except OSError:
        folders = []
    close = get_close_matches(str(path), [*BUILT_MODELS, *folders], n=1)
    return f" Did you mean {close[0]}?" if close else ""


def cache_folder() -> Path:
    """The cache folder of the models that turnsmith builds. It may not exist yet."""
    own = os.environ.get("TURNSMITH_CACHE")
    if own:
        return Path(own).expanduser() / "models"
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "turnsmith" / "models"


def _is_explicit_path(name: str) -> bool:
    return name.startswith(("/", "./", "../", "~"))


def _check_folder(path: str) -> str:
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"The model folder {path} does not exist.{closest_model(path)}")
    if not (folder / "config.json").is_file():
        raise ConfigError(f"The folder {path} holds no model: it has no config.json.")
    return str(folder)


def _build_once(name: str) -> Path:
    """The folder of the cached model, which is built now if it does not exist."""
    folder = cache_folder() / BUILT_MODELS[name]
    if not folder.is_dir():
        # Imported here: building a model needs torch, using a cached one does not.
        _make_once(folder, getattr(import_module(f"turnsmith.inference.models.{name}"), f"build_{name}"))
    return folder


def _copy_once(source: Path, folder: Path) -> Path:
    """`folder`, to which `source` is copied now if it does not exist."""
    if not folder.is_dir():
        _make_once(folder, lambda temporary: shutil.copytree(source, temporary, dirs_exist_ok=True))
    return folder


def _make_once(folder: Path, fill: Callable[[Path], object]) -> None:
    """Fill a temporary folder and rename it, so that a folder with the final name is always complete.

    If several processes do so at once, all use the folder of the first to finish.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        fill(temporary)
        # mkdtemp's folder is readable by its owner only; a shared cache must be readable by others.
        temporary.chmod(0o755)
        try:
            temporary.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
