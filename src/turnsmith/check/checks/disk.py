"""Whether the checkpoints and the episodes of the whole run fit on the disk."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from math import prod
from pathlib import Path

from turnsmith.check.finding import Check, Finding
from turnsmith.check.generation_config import model_file
from turnsmith.check.subject import Subject
from turnsmith.config import ConfigStore
from turnsmith.errors import ConfigError
from turnsmith.importing import import_object
from turnsmith.models.saving import tensors_in
from turnsmith.models.shape import ModelShape
from turnsmith.records.episodes import write_episodes
from turnsmith.records.files import existing_parent
from turnsmith.trajectory import Trajectory

_GIB = 2**30
_NEAR = 0.5
_WEIGHT, _ADAM, _SAVED = 4, 8, 4
"""Bytes of each parameter in a checkpoint: float32 weights, two moments of the optimizer, the Hugging Face folder."""
_TOKEN_BYTES = 8.0
"""Of each token of an episode, when none has been played: ids and log-probs, of which ids compress to half."""


async def check_space(subject: Subject) -> Finding:
    """Add up what the run will write, and compare with what is free."""
    config = subject.config
    played: list[Trajectory] = subject.cache.get("model") or subject.cache.get("scripted") or []
    steps = run_steps(config, len(subject.tasks) if subject.tasks else None)
    episodes = steps * config.training.batch_size * bytes_of_episode(config, played)
    parameters = count_parameters(subject.model_path)
    checkpoints, kept = parameters * bytes_of_parameter(config), kept_checkpoints(config, steps)
    folder = existing_parent(Path(config.checkpoint.output_dir).expanduser())
    needed, free = episodes + checkpoints * kept, shutil.disk_usage(folder).free
    unknown = "because the model is not on this machine" if subject.model_path else "without --model"
    size = f"{kept} checkpoints of {checkpoints / _GIB:.3g} GiB" if parameters else f"checkpoints unknown {unknown}"
    saw = (
        f"{steps} steps write {episodes / 2**20:.3g} MiB of episodes, and {size}; {free / _GIB:.3g} GiB are free in "
        f"{folder}."
    )
    fix = "Set checkpoint.output_dir to a larger disk, or lower checkpoint.keep_last_n."
    if needed > free:
        return Finding("failed", saw, fix)
    return Finding("warning", saw, fix) if needed > _NEAR * free else Finding("passed", saw)


def run_steps(config: ConfigStore, rows: int | None) -> int:
    """The optimizer steps of the run."""
    return config.training.num_epochs * config.training.steps_in_epoch(rows)


def kept_checkpoints(config: ConfigStore, steps: int) -> int:
    """How many checkpoints are on the disk at most: the last ones, the best, and the one that is being written."""
    saving = config.checkpoint
    if not saving.save_interval:
        return 0
    saved = config.training.num_epochs // saving.save_interval + 1
    if config.evaluation.every:
        saved += steps // config.evaluation.every  # each may be the best so far
    return min(saved, saving.keep_last_n + 2) if saving.keep_last_n else saved


def bytes_of_parameter(config: ConfigStore) -> int:
    """Bytes of a checkpoint for each parameter of the model; a LoRA adapter's own are few, and a critic has none."""
    saved = _SAVED if config.checkpoint.save_model else 0
    critic = _WEIGHT + _ADAM if _has_critic(config.training.adv_estimator) else 0
    return _WEIGHT + saved + (0 if config.model.lora_rank else _ADAM) + critic


def _has_critic(estimator: str) -> bool:
    """Whether a critic is trained; estimators of the user's own say so themselves."""
    return estimator == "gae" or (":" in estimator and getattr(import_object(estimator), "needs_critic", False))


def bytes_of_episode(config: ConfigStore, played: Sequence[Trajectory]) -> float:
    """Measured on episodes that were played, else from the limits on tokens."""
    if not played:
        return _TOKEN_BYTES * (config.inference.max_prompt_tokens + config.inference.max_episode_tokens)
    with tempfile.TemporaryDirectory() as folder:
        return write_episodes(Path(folder), 0, played).stat().st_size / len(played)


def count_parameters(model: str | None) -> int:
    """The parameters of a model, from the headers of its safetensors files or else its config.json; 0: not known.

    Of a Hugging Face id only what is in the cache is read, and transformers is not imported: `fit()` waits for this.
    """
    if not model:
        return 0
    found = sum(
        prod(tensor["shape"]) for file in Path(model).glob("*.safetensors") for tensor in tensors_in(file).values()
    )
    if found:
        return found
    if (file := model_file(model, "config.json")) is None:
        return 0
    try:
        return ModelShape.of_config(json.loads(file.read_text(encoding="utf-8"))).parameters
    except (OSError, ValueError, ConfigError):
        return 0


DISK = Check(
    "disk for the whole run",
    "Measures the bytes of an episode, and adds up episodes and checkpoints of all steps.",
    "A run whose disk is full in the middle of a checkpoint stops, often in the night.",
    check_space,
    quick=True,
    plays=False,
)
