"""What is rehearsed in place of a run: its settings, scaled to this machine, and a tiny model with random weights."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnsmith.check.environment.checks.settings import count_parameters
from turnsmith.check.finding import Finding
from turnsmith.config import ConfigStore
from turnsmith.config_sources import from_dict, to_dict
from turnsmith.inference.model_check import find_fault
from turnsmith.inference.models import resolve
from turnsmith.trainer.config.layout import (
    all_nodes,
    episode_workers,
    resolve_attention,
    resolve_backend,
    resolve_device,
    resolve_dtype,
    trainer_ranks,
)

_MANY_EPISODES = 64
_TURN_TOKENS = 12
_EVALUATED = 8
_SAVE_EVERY = 2
_ENDLESS = 1000


def scaled_config(config: ConfigStore, gpus: int = 0) -> ConfigStore:
    """Scale a run to one machine. Group size, updates a step, schedule, isolation and failure policy stay.

    Args:
        config: The settings of the whole run.
        gpus: How many GPUs this machine has.

    Example:
        >>> config = ConfigStore()
        >>> config.ray.num_nodes, config.ray.gpus_per_node, config.ray.address = 4, 8, "auto"
        >>> config.training.batch_size, config.training.mini_batch_size = 512, 256
        >>> small = scaled_config(config)
        >>> small.ray.gpus_per_node, small.training.batch_size, small.training.mini_batch_size
        (2, 16, 8)
    """
    if gpus < 2 and config.training.schedule == "separate_async":
        gpus = 0  # one GPU cannot train and generate
    small = from_dict(to_dict(config))
    small.ray.address, small.ray.num_nodes, small.ray.rollout_nodes = None, 1, 0
    small.ray.num_actors = min(2, episode_workers(config))
    _scale_layout(config, small, gpus)
    _scale_batch(config, small)
    if not gpus:  # settings that only a GPU has; and the engine that starts fastest on a CPU
        small.model.device, small.model.dtype, small.model.attn_implementation = "cpu", "float32", "auto"
        small.inference.backend = "transformers"
    limits, saving = small.inference, small.checkpoint
    limits.max_tokens = min(limits.max_tokens, _TURN_TOKENS)
    small.training.steps_per_epoch, small.training.num_epochs = 1, _ENDLESS
    small.training.check = small.training.filter_groups = False
    small.evaluation.every = small.evaluation.every and _SAVE_EVERY
    small.evaluation.episodes = min(small.evaluation.episodes, _EVALUATED)
    saving.save_interval = saving.save_interval and _SAVE_EVERY
    small.logging.trackers = []
    return small


def _scale_layout(config: ConfigStore, small: ConfigStore, gpus: int) -> None:
    apart = config.training.schedule == "separate_async"
    most = max(1, gpus // 2 if apart else gpus) if gpus else (1 if apart else 2)
    small.ray.gpus_per_node = min(trainer_ranks(config), most)
    small.ray.rollout_gpus_per_node = small.ray.gpus_per_node if apart else None
    for name in ("tensor_parallel_size", "sequence_parallel_size"):
        size = getattr(config.model, name)
        setattr(small.model, name, size if gpus and small.ray.gpus_per_node % size == 0 else 1)


def _scale_batch(config: ConfigStore, small: ConfigStore) -> None:
    """Take the fewest groups that divide over the ranks, and as many updates a step as the run has."""
    training, ranks = config.training, trainer_ranks(small)
    updates = training.batch_size // (training.mini_batch_size or training.batch_size)
    least = lcm(ranks, training.group_size)
    if updates == 1 and least == training.group_size:
        least *= 2  # one group alone would have no other beside it
    while updates > 1 and updates * least > max(_MANY_EPISODES, 2 * least):
        updates //= 2
    small.training.batch_size = updates * least
    small.training.mini_batch_size = least if training.mini_batch_size else None
    small.training.micro_batch_size = 1  # the logits of a real vocabulary need the memory


def changed_settings(config: ConfigStore, small: ConfigStore) -> dict[str, tuple[Any, Any]]:
    """All settings that a rehearsal changed, with both values.

    Example:
        >>> config = ConfigStore()
        >>> small = from_dict(to_dict(config))
        >>> small.training.batch_size = 8
        >>> changed_settings(config, small)
        {'training.batch_size': (32, 8)}
    """
    before, after = to_dict(config), to_dict(small)
    return {
        f"{section}.{name}": (value, after[section].get(name))
        for section, settings in before.items()
        for name, value in settings.items()
        if after[section].get(name) != value
    }


def not_executed(config: ConfigStore, small: ConfigStore, model: str) -> dict[str, str]:
    """The parts of a run that its rehearsal cannot execute here, with the reasons.

    Example:
        >>> list(not_executed(ConfigStore(), scaled_config(ConfigStore()), "Qwen/Qwen3-0.6B"))[0]
        'the weights and the architecture of Qwen/Qwen3-0.6B'
    """
    weights = {f"the weights and the architecture of {model}": "a random Llama of two layers was trained instead"}
    return weights | _of_machine(config, small) | _of_settings(config, small)


def _of_machine(config: ConfigStore, small: ConfigStore) -> dict[str, str]:
    found = dict[str, str]()
    nodes, ranks = all_nodes(config), trainer_ranks(config)
    if nodes > 1:
        found[f"{nodes} nodes"] = "one machine was used: no network between nodes, no shared folder, no second host"
    if ranks > trainer_ranks(small):
        found[f"{ranks} ranks"] = f"{trainer_ranks(small)} were used, with the same code"
    for name in ("tensor_parallel_size", "sequence_parallel_size"):
        size = getattr(config.model, name)
        if size != getattr(small.model, name):
            found[f"model.{name}={size}"] = "it needs as many GPUs"
    if resolve_device(config) == "cuda" and resolve_device(small) == "cpu":
        found["GPU memory, CUDA kernels, NCCL"] = "CPUs were used; processes were connected by gloo"
        found[f"{resolve_dtype(config)}, attention by {resolve_attention(config)}"] = "float32 and sdpa on a CPU"
    if resolve_backend(config) != resolve_backend(small):
        found[f"the engine {resolve_backend(config)}"] = f"{resolve_backend(small)} generated"
    return found


def _of_settings(config: ConfigStore, small: ConfigStore) -> dict[str, str]:
    episodes, played = config.training.batch_size, small.training.batch_size
    reasons = {
        f"a batch of {episodes} episodes": f"{played} were played a step" if episodes != played else "",
        f"the trackers {', '.join(config.logging.trackers)}": config.logging.trackers
        and "a rehearsal is not sent to them",
        "training.filter_groups": config.training.filter_groups and "a random model gets equal rewards in most groups",
        "evaluation": "" if config.evaluation.every else "evaluation.every=0",
        "checkpoint and resume": "" if config.checkpoint.save_interval else "checkpoint.save_interval=0",
    }
    return {what: str(why) for what, why in reasons.items() if why}


if TYPE_CHECKING:
    from turnsmith.inference.chat import Chat
    from turnsmith.tools.parsing import ActionParser

_UNREACHABLE = ("couldn't connect", "offline mode", "Failed to resolve", "Max retries", "Connection", "timed out")
_SMALLEST_CONTEXT = 8192


@dataclass(frozen=True)
class StandIn:
    """A tiny model on this machine, and what is known about the one that it stands for."""

    path: str
    chat: Chat
    parser: ActionParser
    model_path: str | None
    """The folder or id of the run's own model; None if it cannot be reached and `tiny`'s tokenizer is used."""
    parameters: int
    """The number of parameters of the run's own model; 0 if unknown."""

    @property
    def vocabulary(self) -> int:
        """Number of tokens that the model can sample."""
        return len(self.chat.tokenizer)


def stand_in_for(config: ConfigStore, folder: Path) -> tuple[StandIn | None, Finding]:
    """Build the model of a rehearsal in a folder; None if training could not use the run's own model."""
    name = config.model.local_path or config.model.model_name
    source = resolve(config.model.model_name, config.model.local_path)
    trust, inference = config.model.trust_remote_code, config.inference
    template = config.model.chat_template
    fault = find_fault(
        source, inference.tool_format, trust_remote_code=trust, thinking=inference.thinking, chat_template=template
    )
    if fault and not Path(source).is_dir() and any(word in fault for word in _UNREACHABLE):
        saw = f"{name} is not within reach from here, so `tiny`'s tokenizer and template stand for its own: tokens, \
template and tool format were not looked at. Download it once, or name its folder."
        return _loaded(config, resolve("tiny"), None), Finding("skipped", saw)
    if fault:
        return None, Finding("failed", fault, "Name a model that training can use.")
    if name == "tiny":
        return _loaded(config, source, source), Finding("passed", "tiny, as configured.")
    problem = _does_not_fit(config, source)
    if problem:
        return None, problem
    from turnsmith.inference.models.tiny import build_tiny_like

    longest = inference.max_prompt_tokens + inference.max_episode_tokens
    build_tiny_like(folder, source, max(_SMALLEST_CONTEXT, longest), trust_remote_code=trust)
    made = _loaded(config, str(folder), source)
    saw = f"A random model with the tokenizer ({made.vocabulary:,} tokens) and the chat template of {name}"
    size = f", which has {made.parameters / 1e6:,.3g} million parameters" if made.parameters else ""
    return made, Finding("passed", f"{saw}{size}.")


def _does_not_fit(config: ConfigStore, source: str) -> Finding | None:
    """A finding if the settings ask more of the model than it can do."""
    text = _config_of(config, source).get_text_config()
    context = getattr(text, "max_position_embeddings", None)
    longest = config.inference.max_prompt_tokens + config.inference.max_episode_tokens
    if context and longest > context:
        saw = f"An episode may have {longest} tokens (inference.max_prompt_tokens + max_episode_tokens), and the \
model's context has {context}."
        return Finding("failed", saw, "Lower one of the two limits.")
    heads = getattr(text, "num_attention_heads", 1)
    for name in ("tensor_parallel_size", "sequence_parallel_size"):
        size = getattr(config.model, name)
        if heads % size:
            saw = f"The model has {heads} attention heads, which model.{name}={size} does not divide."
            return Finding("failed", saw, f"Set model.{name} to a divisor of {heads}.")
    return None


def _config_of(config: ConfigStore, source: str) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(source, trust_remote_code=config.model.trust_remote_code)


def _loaded(config: ConfigStore, path: str, source: str | None) -> StandIn:
    from transformers import AutoTokenizer

    from turnsmith.inference.chat import Chat, set_template, thinking_settings
    from turnsmith.tools.parsing.formats import parser_for

    tokenizer: Any = AutoTokenizer.from_pretrained(path, trust_remote_code=config.model.trust_remote_code)
    set_template(tokenizer, config.model.chat_template)
    thinking = None if source is None else config.inference.thinking
    chat = Chat(tokenizer, template_settings=thinking_settings(tokenizer, thinking))
    tool_format = "function_calling" if source is None else config.inference.tool_format
    parameters = count_parameters(source)
    return StandIn(path, chat, parser_for(tool_format, tokenizer), source, parameters)
