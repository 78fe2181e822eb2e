"""From a model's name to an engine."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from turnsmith.errors import ConfigError
from turnsmith.inference.http_client import is_url
from turnsmith.inference.sync.base import BaseInferenceEngine
from turnsmith.inference.sync.engines import (
    OpenAIInferenceEngine,
    SGLangInferenceEngine,
    TransformersInferenceEngine,
    VLLMInferenceEngine,
)

_Face = Callable[..., BaseInferenceEngine]
_LOCAL: dict[str, _Face] = {
    "transformers": TransformersInferenceEngine,
    "vllm": VLLMInferenceEngine,
    "sglang": SGLangInferenceEngine,
    "openai": OpenAIInferenceEngine,
}
_SERVERS: dict[str, _Face] = {"openai": OpenAIInferenceEngine, "sglang": SGLangInferenceEngine}
"""For a model that is given as the URL of a server."""


def create_inference_engine(
    model_path: str, backend: str = "auto", config: Mapping[str, Any] | None = None
) -> BaseInferenceEngine:
    """Load a model into an engine. Close it, or use it in a `with`, so that no process is left behind.

    Args:
        model_path: A folder, a Hugging Face id, a model that turnsmith builds itself (`tiny` or `smollm2`), or a
            server's URL.
        backend: `transformers`, `vllm`, `sglang`, `openai`, or `auto`: openai for a URL, else vllm on a GPU where it is
            installed, else transformers.
        config: Settings of the backend, such as `dtype`; vllm also has `max_model_len` and `tensor_parallel_size`.

    Raises:
        ConfigError: If there is no such backend or setting.
        MissingDependency: If the backend is not installed.

    Example:
        >>> with create_inference_engine("tiny", config={"dtype": "float32"}) as engine:
        ...     output = engine.generate(["Hello, how are you?"], max_tokens=8, seed=0)
        >>> output.tokens.shape[0], len(output.sequences), output.stop_reasons
        (1, 1, ['length'])
        >>> create_inference_engine("tiny", "transformers", {"dtyp": "float32"})
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: The transformers engine has no setting dtyp. Did you mean dtype?
    """
    faces = _SERVERS if is_url(model_path) else _LOCAL
    chosen = backend if backend != "auto" else "openai" if faces is _SERVERS else choose_backend()
    if chosen not in _LOCAL:
        known = ", ".join([*_LOCAL, "auto"])
        raise ConfigError(f"There is no backend {backend!r}: choose one of {known}.")
    if chosen == "sglang" and faces is not _SERVERS:
        raise ConfigError(
            f"SGLang runs as a server: start one with `python -m sglang.launch_server --model-path {model_path}` and "
            "pass its URL as the model, or use backend='vllm'."
        )
    if chosen not in faces:
        raise ConfigError(f"The {chosen} engine loads a model and takes no URL: use backend='openai' or 'sglang'.")
    settings, known = dict(config or {}), _settings_of(chosen, faces)
    for name in settings:
        if name not in known:
            raise ConfigError(_unknown(chosen, str(name), faces))
    return faces[chosen](model_path, **settings)


def choose_backend() -> str:
    """What `auto` means on this machine."""
    if importlib.util.find_spec("vllm") is None or importlib.util.find_spec("torch") is None:
        return "transformers"
    import torch

    return "vllm" if torch.cuda.is_available() else "transformers"


def _settings_of(backend: str, faces: Mapping[str, _Face]) -> list[str]:
    if faces[backend] is VLLMInferenceEngine:
        from turnsmith.inference.engines.vllm_engine import VLLMEngine

        return _keywords(VLLMEngine)
    return _keywords(faces[backend])


def _keywords(made: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(made).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY]


def _unknown(backend: str, name: str, faces: Mapping[str, _Face]) -> str:
    known = _settings_of(backend, faces)
    close = get_close_matches(name, known, 1)
    hint = f"Did you mean {close[0]}?" if close else f"It has: {', '.join(known)}."
    elsewhere = [other for other in faces if other != backend and name in _settings_of(other, faces)]
    owner = f" (the {elsewhere[0]} engine has)" if elsewhere else ""
    return f"The {backend} engine has no setting {name}{owner}. {hint}"
