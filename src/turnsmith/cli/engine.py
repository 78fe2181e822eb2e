"""Opens the engine that a command line and its settings ask for."""

from __future__ import annotations

from typing import Any

from turnsmith.config import ConfigStore
from turnsmith.errors import ConfigError
from turnsmith.inference.engine import Sampling
from turnsmith.inference.http_client import is_url
from turnsmith.inference.sync.base import BaseInferenceEngine


def open_engine(
    config: ConfigStore, tokenizer: str | None = None, served_model: str | None = None
) -> BaseInferenceEngine:
    """Load the model, or connect to the server that it is the URL of. Close it, so that no process is left behind.

    Args:
        config: Which model, and how to run it.
        tokenizer: For a server: folder or id of its model's tokenizer, where the server does not say.
        served_model: For a server: which of its models, where it has several.
    """
    from turnsmith.inference.sync.create import create_inference_engine

    if not is_url(model_of(config)) and (tokenizer or served_model):
        raise ConfigError("--tokenizer and --served-model are for a server: give its URL as --model.")
    settings = _settings(config, engine_name(config))
    settings |= {"tokenizer": tokenizer} if tokenizer else {}
    settings |= {"model": served_model} if served_model else {}
    return create_inference_engine(model_of(config), engine_name(config), settings)


def model_of(config: ConfigStore) -> str:
    """The model's folder, name or URL."""
    return config.model.local_path or config.model.model_name


def engine_name(config: ConfigStore) -> str:
    """The engine to use: what the settings say, and where they leave it open, `openai` for a URL."""
    if config.inference.backend != "auto":
        return config.inference.backend
    if is_url(model_of(config)):
        return "openai"
    from turnsmith.inference.sync.create import choose_backend

    return choose_backend()


def evaluation_sampling(config: ConfigStore, seed: int | None = None) -> Sampling:
    """How to sample a turn."""
    inference = config.inference
    return Sampling(inference.max_tokens, inference.temperature, inference.top_p, inference.top_k, seed=seed)


def _settings(config: ConfigStore, backend: str) -> dict[str, Any]:
    model, inference = config.model, config.inference
    settings: dict[str, Any] = {
        "max_concurrency": inference.max_concurrency,
        "trust_remote_code": model.trust_remote_code,
    }
    if backend in ("transformers", "vllm"):
        settings["dtype"] = model.dtype
    if backend == "vllm":
        settings |= {
            "tensor_parallel_size": model.tensor_parallel_size,
            "max_model_len": inference.max_prompt_tokens + inference.max_episode_tokens,
            "gpu_memory_utilization": inference.gpu_memory_utilization,
            "cpu_cache_gib": inference.cpu_cache_gib,
        }
    return settings
