"""Do the settings fit this machine and each other: held-out starts, disk, trackers and folders?"""

from __future__ import annotations

import json
import netrc
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from turnsmith.check.environment.model_files import count_parameters
from turnsmith.check.environment.opening import is_open
from turnsmith.check.environment.scripted import play_model, play_scripted
from turnsmith.check.environment.subject import Subject, environment_check
from turnsmith.check.finding import Finding
from turnsmith.config import ConfigStore
from turnsmith.importing import import_object
from turnsmith.records.episodes import write_episodes
from turnsmith.records.files import existing_parent, why_not_writable
from turnsmith.rollout.evaluation.evaluate import FIRST_SEED
from turnsmith.trajectory import Trajectory

_STARTS = 16
_MANY = 0.5


@environment_check("held-out", "held-out starts are held out", quick=True, plays=False, rehearsed=True)
async def check_held_out(subject: Subject) -> Finding:
    """Compare the tasks; if there are none, what the environment shows for seeds of training and of evaluation.

    An evaluation on what was trained on rises although the model only remembers.
    """
    if subject.validation_tasks:
        if not subject.tasks:
            return Finding("skipped", "There are held-out tasks, but none of training to compare them with.")
        return _compare(subject.tasks, subject.validation_tasks)
    if not subject.config.evaluation.every or subject.is_agent:
        return Finding("skipped", "Nothing is evaluated during training (evaluation.every, --validation).")
    if subject.tasks:
        return Finding("skipped", "The held-out tasks are not known here: pass --validation.")
    held_out = replace(subject, seed=FIRST_SEED, played={})
    trained, evaluated = [await _openings(one) for one in (subject, held_out)]
    if not trained or not evaluated:
        return Finding("skipped", "No episode opens.")
    same = [text for text in evaluated if text in trained]
    if len(same) > _MANY * len(evaluated):
        saw = f"{len(same)} of {len(evaluated)} held-out starts open like one of {_STARTS} starts of training."
        fix = "Let the seed of `reset` decide more, or pass validation= with tasks that are not trained on."
        return Finding("warning", saw, fix)
    return Finding("passed", f"{len(evaluated)} held-out starts, {len(same)} of them open like one of training.")


def _compare(tasks: Sequence[Mapping[str, Any]], held_out: Sequence[Mapping[str, Any]]) -> Finding:
    trained = set(map(_key, tasks))
    same = sum(_key(task) in trained for task in held_out)
    if same:
        saw = f"{same} of {len(held_out)} held-out tasks are among the {len(tasks)} tasks of training."
        return Finding("failed", saw, "Take them out of one of the two.")
    return Finding("passed", f"None of {len(held_out)} held-out tasks is among the {len(tasks)} of training.")


def _key(task: Mapping[str, Any]) -> str:
    """The content of a task without case and spaces, which do not make it a different task."""
    return " ".join(json.dumps(task, sort_keys=True, default=str).lower().split())


async def _openings(subject: Subject) -> list[str]:
    opened = await subject.openings(subject.starts(_STARTS))
    shown = [episode.messages for episode in opened if is_open(episode)]
    return ["\n".join(message["content"] for message in messages) for messages in shown]


_GIB = 2**30
_NEAR = 0.5
_WEIGHT, _ADAM, _SAVED = 4, 8, 4
"""Bytes of each parameter in a checkpoint: float32 weights, two moments of the optimizer, the Hugging Face folder."""
_TOKEN_BYTES = 8.0
"""Bytes of each token if no episode has been played: ids, which compress to half, and log-probs."""


@environment_check("disk", "disk for the whole run", quick=True, plays=False, rehearsed=True)
async def check_space(subject: Subject) -> Finding:
    """Add up what the run will write, and compare with what is free.

    A run whose disk is full in the middle of a checkpoint stops, often in the night.
    """
    config = subject.config
    played: list[Trajectory] = subject.known(play_model) or subject.known(play_scripted) or []
    steps = run_steps(config, len(subject.tasks) if subject.tasks else None)
    episodes = steps * config.training.batch_size * bytes_of_episode(config, played)
    parameters = count_parameters(subject.model_path)
    checkpoints, kept = parameters * bytes_of_parameter(config), kept_checkpoints(config, steps)
    unknown = "because the model is not on this machine" if subject.model_path else "without --model"
    size = f"{kept} checkpoints of {checkpoints / _GIB:.3g} GiB" if parameters else f"checkpoints unknown {unknown}"
    told = f"{steps} steps write {episodes / 2**20:.3g} MiB of episodes, and {size}"
    return disk_finding(Path(config.checkpoint.output_dir).expanduser(), episodes + checkpoints * kept, told)


def disk_finding(folder: Path, needed: float, told: str) -> Finding:
    """Whether the disk of a folder has room for the needed bytes; `told` says what they are."""
    folder = existing_parent(folder)
    free = shutil.disk_usage(folder).free
    finding = Finding("passed", f"{told}; {free / _GIB:.3g} GiB are free in {folder}.")
    if needed <= _NEAR * free:
        return finding
    fix = "Set checkpoint.output_dir (here: --output-dir) to a larger disk, or lower checkpoint.keep_last_n."
    return replace(finding, status="failed" if needed > free else "warning", fix=fix)


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
    """Bytes of a recorded episode: measured if episodes have been played, otherwise from the limits on tokens."""
    if not played:
        return _TOKEN_BYTES * (config.inference.max_prompt_tokens + config.inference.max_episode_tokens)
    with tempfile.TemporaryDirectory() as folder:
        return write_episodes(Path(folder), 0, played).stat().st_size / len(played)


_MODULES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow", "trackio": "trackio"}
_WANDB_HOST = "api.wandb.ai"


@environment_check("places", "trackers and folders", quick=True, plays=False, rehearsed=True)
async def check_places(subject: Subject) -> Finding:
    """Look at what the trackers need, and write a file to the output folder.

    A tracker that asks for a key, or a folder that other nodes do not see, stops a queued run at its start.
    """
    config = subject.config
    trackers = [str(name) for name in config.logging.trackers]
    for name in trackers:
        if name in _MODULES and find_spec(_MODULES[name]) is None:
            saw = f"The tracker {name} is not installed."
            return Finding("failed", saw, f"Take it out of logging.trackers, or pip install {name}.")
    if "wandb" in trackers and not _has_wandb_key():
        saw = "Weights & Biases has no key on this machine: it would ask for one, and nobody is there to answer."
        return Finding("failed", saw, "Set WANDB_API_KEY, or WANDB_MODE=offline.")
    folder = Path(config.checkpoint.output_dir).expanduser().absolute()
    if reason := why_not_writable(folder):
        saw = f"checkpoint.output_dir={folder} cannot be written to: {reason}."
        return Finding("failed", saw, "Set checkpoint.output_dir to a folder of your own.")
    if config.ray.address and any(folder.is_relative_to(local) for local in (tempfile.gettempdir(), "/tmp")):
        saw = f"The run joins a cluster, and checkpoint.output_dir={folder} is local to this machine."
        return Finding("failed", saw, "Set checkpoint.output_dir to a folder that all nodes share.")
    told = f"trackers {', '.join(trackers)}; " if trackers else ""
    return Finding("passed", f"{told}{folder} can be written to.")


def _has_wandb_key() -> bool:
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_MODE") in ("offline", "disabled", "dryrun"):
        return True
    try:
        return netrc.netrc().authenticators(_WANDB_HOST) is not None
    except (OSError, netrc.NetrcParseError):
        return False
