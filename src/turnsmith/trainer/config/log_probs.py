"""The trainer's forward pass, decided from the model's config.json before anything starts: log-probs by verl's fused
kernels, which hold the logits of 512 tokens at a time, or from the logits of all tokens at once; and, without
flash-attn, episodes one after the other or padded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from turnsmith.config import ConfigStore
from turnsmith.config_sources import from_dict
from turnsmith.errors import ConfigError
from turnsmith.inference.auto import PACKED_SDPA
from turnsmith.inference.models import BUILT_MODELS
from turnsmith.trainer.config.layout import resolve_attention, resolve_device
from turnsmith.trainer.config.to_verl import attention_keys

FUSED = "actor_rollout_ref.model.use_fused_kernels"
_OPTIONS = "actor_rollout_ref.model.fused_kernel_options"

_FAMILIES = (
    "apertus arcee deepseek_v2 deepseek_v3 dots1 ernie4_5 ernie4_5_moe exaone4 gemma gemma3_text glm glm4 glm4_moe "
    "gpt_oss hunyuan_v1_dense llama ministral ministral3 minimax_m2 mistral mixtral nemotron olmo2 olmo3 olmoe phi3 "
    "phimoe qwen2 qwen2_moe qwen3 qwen3_5_text qwen3_moe qwen3_next seed_oss smollm3 stablelm starcoder2"
)
FUSED_FAMILIES = frozenset(_FAMILIES.split())
"""Types of models whose fused log-probs, entropy and gradients equal the plain ones: a test compares each of them."""

PACKED_FAMILIES = FUSED_FAMILIES - {"gpt_oss", "ministral3", "nemotron", "qwen3_5_text", "qwen3_next"}
"""Types of models whose attention `packed_sdpa` computes; of the others some have linear layers, which it does not keep
apart, and some do not tell attention functions the positions."""

_CHANGED_LOGITS = {
    "cohere": "scale",
    "cohere2": "scale",
    "falcon_h1": "scale",
    "gemma2": "cap",
    "gemma4_text": "cap",
    "granite": "scale",
    "granitemoe": "scale",
    "granitemoehybrid": "scale",
    "phi": "add a bias to",
    "vaultgemma": "cap",
}
"""Types of models that change what comes out of their lm_head, and how: verl's fused forward leaves that out."""
_NEUTRAL = {"final_logit_softcapping": None, "logits_scaling": 1, "logit_scale": 1, "lm_head_multiplier": 1}
"""Settings of models that change what comes out of lm_head, and their values that change nothing."""
_SECONDS = 5.0
_HEAD_ADAPTERS = tuple(f"actor_rollout_ref.model.{name}" for name in ("target_modules", "target_parameters"))
_ABOUT_ALL_LOGITS = ("entropy_checkpointing", "entropy_from_logits_with_chunking", "entropy_from_logits_chunk_size")


def forward_keys(config: ConfigStore, model: str | None = None) -> dict[str, Any]:
    """The settings of verl, for a model's folder or Hugging Face id (None: as the settings name it)."""
    keys: dict[str, Any] = {FUSED: not plain_because(config, model)}
    return keys | (attention_keys("sdpa") if padded_because(config, model) else {})


def padded_because(config: ConfigStore, model: str | None = None) -> str:
    """Why `packed_sdpa` cannot compute attention, so that episodes are padded; empty if it can or is not chosen.

    Raises:
        ConfigError: The user's settings ask for it.
    """
    if resolve_attention(config) != PACKED_SDPA:
        return ""
    name = model or config.model.local_path or config.model.model_name
    try:
        family = str(read_model(name).get("model_type"))
        reason = "" if family in PACKED_FAMILIES else f"models of type {family} were not compared with it"
    except (OSError, ValueError) as error:
        reason = f"the config.json of {name} cannot be read here ({str(error).splitlines()[0]})"
    if reason and config.model.attn_implementation == PACKED_SDPA:
        raise ConfigError(f"model.attn_implementation={PACKED_SDPA}: {reason}. Use sdpa, which pads episodes.")
    return reason


def plain_because(config: ConfigStore, model: str | None = None) -> str:
    """Why log-probs are computed from the logits of all tokens; empty if they are fused.

    Raises:
        ConfigError: The user's settings of verl ask for what would be wrong, or have no effect.
    """
    section = from_dict({"verl": config.verl}).verl
    asked = section.get(FUSED)
    reason = "" if asked else _reason(config) if asked is None else f"verl.{FUSED}=false"
    if not reason:
        wrong, untested = _of_model(config, section, model or config.model.local_path or config.model.model_name)
        if asked and wrong:
            raise ConfigError(
                f"verl.{FUSED}={str(asked).lower()} would train on wrong log-probs: {wrong}. Leave it out."
            )
        reason = "" if asked else wrong or untested
    _check_effect(config, section, is_fused=not reason)
    return reason


def forward_words(config: ConfigStore, model: str | None = None) -> str:
    """The choice in a few words, with its reason."""
    plain, padded = plain_because(config, model), padded_because(config, model)
    words = f"plain log-probs: {plain}" if plain else "fused log-probs"
    return words + (f", padded episodes: {padded}" if padded else "")


def _reason(config: ConfigStore) -> str:
    """Why log-probs are not fused with any model; empty if only the model decides."""
    if resolve_device(config) == "cpu":
        return "on a CPU, a prompt that several episodes share is computed once instead, which is faster"
    return "flash attention comes with kernels of its own" if resolve_attention(config) == "flash_attention_2" else ""


def _of_model(config: ConfigStore, section: Mapping[str, Any], model: str) -> tuple[str, str]:
    """Why fused log-probs of this model would be wrong, and why they are untested; both empty if neither is so."""
    if any("lm_head" in str(section.get(name) or section.get(f"+{name}")) for name in _HEAD_ADAPTERS):
        return "verl's fused forward leaves an adapter of lm_head out", ""
    try:
        found = read_model(model)
    except (OSError, ValueError) as error:
        return "", f"the config.json of {model} cannot be read here ({str(error).splitlines()[0]})"
    family = str(found.get("model_type"))
    kind = f"models of type {family}"
    if family in _CHANGED_LOGITS:
        return f"{kind} {_CHANGED_LOGITS[family]} their logits, which verl's fused forward leaves out", ""
    text = found | (found.get("text_config") or {})
    for name, neutral in _NEUTRAL.items():
        if text.get(name) not in (None, neutral):
            return f"the model has {name}={text[name]}, which verl's fused forward leaves out", ""
    if family == "kimi_vl":
        return f"verl has no fused forward for {kind}", ""
    if config.model.trust_remote_code and "auto_map" in found:
        return "", "the model brings code of its own"
    return "", "" if family in FUSED_FAMILIES else f"{kind} were not compared with verl's fused forward"


def read_model(model: str) -> dict[str, Any]:
    """The config.json of a model's folder or Hugging Face id."""
    if model in BUILT_MODELS:
        return {"model_type": "llama"}  # both of them, and they may not be built yet
    folder = Path(model).expanduser()
    if folder.is_dir():
        return json.loads((folder / "config.json").read_text(encoding="utf-8"))
    from huggingface_hub import constants, hf_hub_url, try_to_load_from_cache

    cached = try_to_load_from_cache(model, "config.json")
    if isinstance(cached, str):
        return json.loads(Path(cached).read_text(encoding="utf-8"))
    if constants.HF_HUB_OFFLINE:
        raise OSError("HF_HUB_OFFLINE is set")
    answer = _asked_of(hf_hub_url(model, "config.json"))
    if isinstance(answer, OSError):
        raise answer
    return json.loads(answer)


@cache
def _asked_of(url: str) -> bytes | OSError:
    """What the hub answers, asked once: several checks of a run read the same file, and each would wait for it."""
    from huggingface_hub.utils import build_hf_headers

    try:
        # Not hf_hub_download, which tries for half a minute where there is no network.
        with urlopen(Request(url, headers=build_hf_headers()), timeout=_SECONDS) as answer:
            return answer.read()
    except OSError as error:
        return error


def _check_effect(config: ConfigStore, section: Mapping[str, Any], *, is_fused: bool) -> None:
    backend = section.get(f"{_OPTIONS}.impl_backend", "torch")
    options = [name for name in section if name.startswith(_OPTIONS)]
    if not is_fused and options:
        raise ConfigError(f"verl.{options[0]} has no effect without verl.{FUSED}=true: set that too, or leave it out.")
    if backend not in ("torch", "triton", "liger") or (backend == "triton" and resolve_device(config) == "cpu"):
        raise ConfigError(
            f"verl.{_OPTIONS}.impl_backend={backend} is none that verl has here: use torch, or on GPUs triton or liger."
        )
    for name in section if is_fused else ():
        if name.startswith("actor_rollout_ref.") and name.rpartition(".")[2] in _ABOUT_ALL_LOGITS:
            raise ConfigError(
                f"verl.{name} has no effect with fused log-probs, which never hold all logits: leave it out, or set "
                f"verl.{FUSED}=false."
            )
