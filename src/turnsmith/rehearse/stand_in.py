"""The model of a rehearsal: random weights, with the tokenizer, chat template and vocabulary of the run's own model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnsmith.check.checks.disk import count_parameters
from turnsmith.check.finding import Finding
from turnsmith.config import ConfigStore
from turnsmith.inference.model_check import find_fault
from turnsmith.models import resolve

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
    """The folder or id of the run's own model; None: its tokenizer is not within reach, and is `tiny`'s here."""
    parameters: int
    """Of the run's own model; 0: not known."""

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
    from turnsmith.models.tiny import build_tiny_like

    longest = inference.max_prompt_tokens + inference.max_episode_tokens
    build_tiny_like(folder, source, max(_SMALLEST_CONTEXT, longest), trust_remote_code=trust)
    made = _loaded(config, str(folder), source)
    saw = f"A random model with the tokenizer ({made.vocabulary:,} tokens) and the chat template of {name}"
    size = f", which has {made.parameters / 1e6:,.3g} million parameters" if made.parameters else ""
    return made, Finding("passed", f"{saw}{size}.")


def _does_not_fit(config: ConfigStore, source: str) -> Finding | None:
    """What the settings ask of the model that it cannot do."""
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
