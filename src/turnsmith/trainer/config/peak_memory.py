"""The memory of one trainer rank on a GPU, from one update and one weight sync that are executed on tensors without
content, with the real sizes of the model and the layout.

Not counted, and therefore a margin: CUDA's context, NCCL's buffers, what kernels allocate inside, and fragmentation.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.metadata import version

import msgspec

from turnsmith.config import ConfigStore
from turnsmith.config_sources import to_dict
from turnsmith.inference.models import cache_folder, resolve
from turnsmith.records.files import make_folder, write_text
from turnsmith.trainer.advantages import get_estimator
from turnsmith.trainer.config.layout import resolve_attention, trainer_ranks
from turnsmith.trainer.config.log_probs import plain_because, read_model
from turnsmith.trainer.config.to_verl import keys_we_set

MARGIN = 1.5 * 2**30
"""Bytes assumed for CUDA's context, NCCL and fragmentation on each GPU."""
REFUSED, WARNED = 1.1, 0.9
"""Shares of a GPU's memory: a run that needs more is refused, or warned of."""
_SECONDS = 900.0
_VERSION = 1
"""Raise it when the same layout is executed differently."""
_MATTERS = ("actor_rollout_ref.model", "actor_rollout_ref.actor", "actor_rollout_ref.rollout.n", "verl")
"""Settings of verl on which memory depends begin with one of these."""


@dataclass(frozen=True)
class PeakMemory:
    """Bytes of one rank."""

    parameters: int
    gradients: int
    optimizer: int
    update: int
    """Most bytes at a time in an update."""
    sync: int
    """Most bytes at a time while the weights are made whole, one after the other, to be sent."""
    rest: int
    """Bytes that stay while episodes are generated: parameters and optimizer, without what is offloaded then."""
    operators: dict[str, int]
    """The attention operators that CUDA chooses, and how often they ran."""
    tokens: int
    """Tokens of the micro-batch."""
    seconds: float
    """CPU seconds that it took to execute."""


def executed_peak(config: ConfigStore, model: str | None = None, episode: int | None = None) -> PeakMemory | str:
    """The memory of a run's trainer rank on a GPU, or why it cannot be executed here.

    It takes some ten seconds to a minute, and is kept by model, layout and versions.

    Args:
        config: The settings, with GPUs.
        model: Folder or Hugging Face id of the model; by default as in the settings.
        episode: Tokens of an episode, with its prompt; by default the longest that the settings allow.
    """
    if reason := _unexecuted_because(config):
        return reason
    model = model or resolve(config.model.model_name, config.model.local_path)
    tokens = episode or config.inference.max_prompt_tokens + config.inference.max_episode_tokens
    settings = to_dict(config)
    try:
        shape = read_model(model)
    except (OSError, ValueError) as error:
        return f"the config.json of {model} cannot be read here ({error})"
    keys = keys_we_set(config, steps=1) | {"verl": config.verl}
    keys = {name: value for name, value in keys.items() if name.startswith(_MATTERS) and not name.endswith("path")}
    parts = [shape, keys, trainer_ranks(config), tokens, _VERSION]
    parts += [version(name) for name in ("torch", "verl", "transformers", "peft")]
    key = sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
    file = cache_folder().parent / "plan" / f"memory-{key[:24]}.json"
    if not file.is_file():
        given = {"settings": settings, "model": model, "length": tokens}
        done = _execute(given)
        if isinstance(done, str):
            return done
        make_folder(file.parent)
        write_text(file, json.dumps(asdict(done), indent=1) + "\n")
    return msgspec.json.decode(file.read_text(encoding="utf-8"), type=PeakMemory)


def _execute(given: Mapping[str, object]) -> PeakMemory | str:
    command = [sys.executable, "-m", "turnsmith.trainer.verl.executed_memory"]
    text, variables = json.dumps(given, default=str), os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    try:
        done = subprocess.run(
            command, input=text, env=variables, capture_output=True, text=True, check=False, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"it took more than {_SECONDS:.0f} s"
    if done.returncode:
        return (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1][-300:]
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=PeakMemory)


def _unexecuted_because(config: ConfigStore) -> str:
    if get_estimator(config.training.adv_estimator).needs_critic:
        return "a critic is not executed"
    if config.model.sequence_parallel_size > 1 or resolve_attention(config) == "flash_attention_2":
        return "flash-attn and what needs it cannot be executed on fake tensors"
    return f"only fused log-probs are executed ({plain})" if (plain := plain_because(config)) else ""
