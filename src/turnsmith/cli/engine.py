"""Opens the engine that the settings of a command ask for."""

from __future__ import annotations

from turnsmith.config import ConfigStore
from turnsmith.errors import ConfigError
from turnsmith.inference.chat import thinking_settings
from turnsmith.inference.engine import Sampling
from turnsmith.inference.http_client import is_url
from turnsmith.inference.sync.base import BaseInferenceEngine


def open_engine(
    config: ConfigStore, tokenizer: str | None = None, served_model: str | None = None
) -> BaseInferenceEngine:
    """Load the model, or connect to the server if the model is a URL. The caller must close the engine.

    Args:
        config: The settings that name the model and its backend.
        tokenizer: Folder or id of the tokenizer, for a server that does not name it.
        served_model: The model to use, for a server that has several.
    """
    from turnsmith.inference.sync.create import create_inference_engine, engine_settings

    model, backend = model_name_or_path(config), backend_name(config)
    if not is_url(model) and (tokenizer or served_model):
        raise ConfigError("--tokenizer and --served-model only apply to a server: pass its URL as --model.")
    settings = engine_settings(config, backend)
    settings |= {"tokenizer": tokenizer} if tokenizer else {}
    settings |= {"model": served_model} if served_model else {}
    engine = create_inference_engine(model, backend, settings)
    if config.inference.thinking is not None:
        try:
            engine.template_settings = thinking_settings(engine.tokenizer, config.inference.thinking)
        except ConfigError:
            engine.close()
            raise
    return engine


def model_name_or_path(config: ConfigStore) -> str:
    """The model's folder, Hugging Face id or URL."""
    return config.model.local_path or config.model.model_name


def backend_name(config: ConfigStore) -> str:
    """The backend to use, with `auto` resolved: `openai` for a URL, else whatever fits this machine."""
    if config.inference.backend != "auto":
        return config.inference.backend
    if is_url(model_name_or_path(config)):
        return "openai"
    from turnsmith.trainer.config.layout import resolve_backend

    return resolve_backend(config)


def sampling_from_config(config: ConfigStore, seed: int | None = None) -> Sampling:
    """The sampling parameters of a turn."""
    inference = config.inference
    return Sampling(inference.max_tokens, inference.temperature, inference.top_p, inference.top_k, seed=seed)
