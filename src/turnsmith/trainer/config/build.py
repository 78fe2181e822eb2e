"""Builds from a run's settings what training starts with: verl's config, and how to sample."""

from __future__ import annotations

from typing import Any

from turnsmith.config import ConfigStore
from turnsmith.inference.engine import Sampling
from turnsmith.trainer.config.auto import resolve_backend, resolve_device
from turnsmith.trainer.config.check import check
from turnsmith.trainer.config.log_probs import fused_key, log_prob_words
from turnsmith.trainer.config.to_verl import keys_we_set
from turnsmith.trainer.config.verl_defaults import compose
from turnsmith.trainer.config.verl_overrides import checked_verl_section


def verl_config(
    config: ConfigStore, *, model_path: str | None = None, run_dir: str | None = None, steps: int | None = None
) -> Any:
    """verl's whole config for a run, as an OmegaConf DictConfig; settings that cannot work are a ConfigError."""
    check(config)
    overrides = checked_verl_section(config, keys_we_set)
    keys = keys_we_set(config, model_path=model_path, run_dir=run_dir, steps=steps)
    return compose(keys | fused_key(config, model_path) | overrides)


def training_sampling(config: ConfigStore) -> Sampling:
    """How to sample a turn in training."""
    inference = config.inference
    return Sampling(
        # Only the transformers engine makes a run repeatable; in others a seed per request would only cost time.
        seed=config.training.seed if resolve_backend(config) == "transformers" else None,
        max_tokens=inference.max_tokens,
        temperature=inference.temperature,
        top_p=inference.top_p,
        top_k=inference.top_k,
    )


def run_header(config: ConfigStore, environment: str) -> str:
    """One line that says what is trained, and how."""
    training, model = config.training, config.model.local_path or config.model.model_name
    log_probs = f", {log_prob_words(config)}" if resolve_device(config) == "cuda" else ""
    return (
        f"{environment} · {model} · {training.adv_estimator}, {training.batch_size} episodes a step in "
        f"groups of {training.group_size} · {resolve_backend(config)} on {resolve_device(config)}{log_probs}"
    )
