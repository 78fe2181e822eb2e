"""Where a LoRA adapter can be trained and reach the engine. Decided before anything starts."""

from __future__ import annotations

from turnsmith.config import ConfigStore
from turnsmith.config_sources import from_dict
from turnsmith.errors import ConfigError
from turnsmith.trainer.config.layout import resolve_backend, sends_adapter
from turnsmith.trainer.config.log_probs import read_model

_TARGETS = "actor_rollout_ref.model.target_modules"
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
"""Layers whose adapters verl merges also where the model is a mixture of experts."""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names by which models say how many experts a layer has."""


def check_adapter(config: ConfigStore, model: str | None = None) -> None:
    """Raise a ConfigError for an adapter that cannot be trained, for a model's folder or Hugging Face id.

    Args:
        config: The settings.
        model: None: as the settings name it.
    """
    rank, is_vllm = config.model.lora_rank, resolve_backend(config) == "vllm"
    if not config.model.lora_merge and not (rank and is_vllm and config.training.schedule != "separate_async"):
        raise ConfigError(
            "model.lora_merge=false needs model.lora_rank, inference.backend=vllm, and another training.schedule than "
            "separate_async, which sends whole models: leave it out."
        )
    model = model or config.model.local_path or config.model.model_name
    if rank and (sends_adapter(config) or not _is_of_attention(config)) and _has_experts(model):
        raise ConfigError(
            f"model.lora_rank={rank}: {model} is a mixture of experts, which verl cannot adapt. Adapt its attention "
            f"alone (model.lora_merge=true, verl.{_TARGETS}={sorted(_ATTENTION)}), or train all weights."
        )


def _is_of_attention(config: ConfigStore) -> bool:
    section = from_dict({"verl": config.verl}).verl
    targets = section.get(_TARGETS) or ["all-linear"]
    is_more = section.get("actor_rollout_ref.model.target_parameters")
    return {*([targets] if isinstance(targets, str) else targets)} <= _ATTENTION and not is_more


def _has_experts(model: str) -> bool:
    try:
        found = read_model(model)
    except (OSError, ValueError):  # nobody can read it here, so it is not loaded either
        return False
    text = found | (found.get("text_config") or {})
    return any((text.get(name) or 0) > 1 for name in _EXPERTS)
