"""Builds an inference engine from a model name or a server URL."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from turnsmith.config import ConfigStore
from turnsmith.errors import ConfigError
from turnsmith.importing import import_object
from turnsmith.inference.auto import ALONE_ON_GPU, auto_backend, auto_device
from turnsmith.inference.chat import read_template, set_template
from turnsmith.inference.engines.openai_engine import OpenAIEngine
from turnsmith.inference.engines.sglang_engine import SGLangEngine
from turnsmith.inference.engines.vllm_engine import VLLMEngine
from turnsmith.inference.http_client import ServerOptions, is_url
from turnsmith.inference.models import resolve
from turnsmith.inference.sync.base import BaseInferenceEngine
from turnsmith.inference.sync.engines import (
    OpenAIInferenceEngine,
    SGLangInferenceEngine,
    TransformersInferenceEngine,
    VLLMInferenceEngine,
    load_tokenizer,
)

_ENGINES: dict[str, Callable[..., BaseInferenceEngine]] = {
    "transformers": TransformersInferenceEngine,
    "vllm": VLLMInferenceEngine,
    "sglang": SGLangInferenceEngine,
    "openai": OpenAIInferenceEngine,
}
"""Each class takes the model (or the server's URL) and its settings as keywords."""
_ASYNC_ENGINES = {"vllm": [VLLMEngine], "sglang": [SGLangEngine], "openai": [OpenAIEngine]}
_SERVERS = ("sglang", "openai")
"""Backends that call a server; the others load the model themselves."""


def create_inference_engine(
    model_path: str, backend: str = "auto", config: Mapping[str, Any] | None = None
) -> BaseInferenceEngine:
    """Load a model, or connect to a server. Use the engine in a `with` block, or close it, so that no process is left.

    Args:
        model_path: A folder, a Hugging Face id, a model that turnsmith builds itself (`tiny` or `smollm2`), or a
            server's URL.
        backend: `transformers`, `vllm`, `sglang` (a URL only), `openai`, `auto` (openai for a URL, else vllm on a GPU
            and transformers on a CPU), or an engine of your own as `module:name`: a class that is called with the
            model and its settings, and has `Engine.generate`.
        config: Settings of the backend, such as `dtype`; vllm also has `max_model_len` and `tensor_parallel_size`.
            Settings of another backend are left out, with a warning.
            Every backend takes `chat_template`, as `model.chat_template`.
            With an engine of your own, `tokenizer` names the tokenizer, if it is not the model's.

    Raises:
        ConfigError: If there is no such backend or setting, or the backend cannot load this kind of model.
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
    if backend == "auto":
        backend = "openai" if is_url(model_path) else auto_backend(auto_device())
    settings = dict(config or {})
    template = read_template(settings.pop("chat_template", None))
    engine = _engine(model_path, backend, settings)
    if template is not None:  # otherwise `Chat` sets one; `generate` needs none
        set_template(engine.tokenizer, template)
    return engine


def _engine(model_path: str, backend: str, settings: dict[str, Any]) -> BaseInferenceEngine:
    if ":" in backend:
        return _user_engine(model_path, backend, settings)
    if backend not in _ENGINES:
        known = ", ".join([*_ENGINES, "auto"])
        raise ConfigError(f"There is no backend {backend!r}: choose one of {known}, or module:name of your own.")
    if is_url(model_path) and backend not in _SERVERS:
        raise ConfigError(f"The {backend} engine loads a model and takes no URL: use backend='openai' or 'sglang'.")
    if backend == "sglang" and not is_url(model_path):
        raise ConfigError(
            "SGLang runs as a server, in an environment of its own (locks/sglang.txt). Start it there, `python -m "
            f"sglang.launch_server --model-path {model_path} --port 30000`, and write create_inference_engine("
            f"'http://127.0.0.1:30000', backend='sglang'), or use backend='vllm', which loads {model_path} itself."
        )
    for name in [name for name in settings if name not in _settings_of(backend)]:
        others = [other for other in _ENGINES if name in _settings_of(other)]
        if not others:
            raise ConfigError(_unknown_setting(backend, str(name)))
        del settings[name]
        owners = " and ".join(others)
        warnings.warn(f"The {backend} engine does not use the setting {name}, which is for {owners}.", stacklevel=3)
    return _ENGINES[backend](model_path, **settings)


def engine_settings(config: ConfigStore, backend: str) -> dict[str, Any]:
    """A run's settings for `create_inference_engine`."""
    model, inference = config.model, config.inference
    settings: dict[str, Any] = {} if model.chat_template is None else {"chat_template": model.chat_template}
    if ":" in backend:  # an engine of the user's own, which has its own defaults
        return settings
    settings |= {
        "max_concurrency": inference.max_concurrency,
        "trust_remote_code": model.trust_remote_code,
    }
    if backend in ("transformers", "vllm"):
        settings["dtype"] = model.dtype
    if backend == "vllm":
        settings |= {
            "tensor_parallel_size": model.tensor_parallel_size,
            "max_model_len": inference.max_prompt_tokens + inference.max_episode_tokens,
            "gpu_memory_utilization": inference.gpu_memory_utilization or ALONE_ON_GPU,
            "cpu_cache_gib": inference.cpu_cache_gib,
        }
    return settings


def _user_engine(model_path: str, backend: str, settings: dict[str, Any]) -> BaseInferenceEngine:
    engine_class = import_object(backend)
    if not callable(getattr(engine_class, "generate", None)):
        raise ConfigError(f"{backend} is not an engine: it needs an async method `generate`, as in `turnsmith.Engine`.")
    tokenizer_name = settings.pop("tokenizer", model_path)
    tokenizer, stop_token_ids = load_tokenizer(resolve(tokenizer_name), trust_remote_code=False)
    return BaseInferenceEngine(engine_class(model_path, **settings), tokenizer, stop_token_ids=stop_token_ids)


def _settings_of(backend: str) -> list[str]:
    # A synchronous engine passes on the keywords of the async one behind it.
    classes: list[Callable[..., Any]] = [_ENGINES[backend], *_ASYNC_ENGINES.get(backend, ())]
    parameters = [parameter for engine in classes for parameter in inspect.signature(engine).parameters.values()]
    names = [parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
    names += ServerOptions.__annotations__ if backend in _SERVERS else ()
    return [*dict.fromkeys(names), "chat_template"]


def _unknown_setting(backend: str, name: str) -> str:
    known = _settings_of(backend)
    close = get_close_matches(name, known, 1)
    hint = f"Did you mean {close[0]}?" if close else f"It has: {', '.join(known)}."
    return f"The {backend} engine has no setting {name}. {hint}"
