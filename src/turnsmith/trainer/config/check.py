"""From a run's settings to verl's config, once it is checked that they can work.

Settings that are impossible, contradict each other or would have no effect are refused before anything starts.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from turnsmith.config import ConfigStore, TrainingConfig
from turnsmith.config_sources import from_dict, to_dict
from turnsmith.errors import ConfigError, MissingDependency
from turnsmith.importing import import_object, install_line
from turnsmith.inference.auto import has_flash_attention
from turnsmith.inference.chat import read_template
from turnsmith.inference.models import check_name
from turnsmith.rollout.failure_policy import FailurePolicy
from turnsmith.rollout.players import Players
from turnsmith.tools.parsing.formats import find_parser
from turnsmith.trainer.advantages import get_estimator
from turnsmith.trainer.config.adapters import check_adapter
from turnsmith.trainer.config.layout import (
    check_layout,
    resolve_attention,
    resolve_backend,
    resolve_device,
    resolve_dtype,
)
from turnsmith.trainer.config.log_probs import forward_keys, forward_words
from turnsmith.trainer.config.to_verl import keys_we_set
from turnsmith.trainer.config.verl_settings import checked_verl_section, compose, known_names


def check(config: ConfigStore) -> None:
    """Raise a ConfigError for settings that cannot work."""
    training = config.training
    to_dict(config)  # checks names, types and fixed choices
    read_template(config.model.chat_template)
    if config.training.offload != "none" and resolve_device(config) == "cpu":
        raise ConfigError("training.offload is for GPUs: a CPU trains in the machine's memory. Leave it out.")
    if config.model.local_path is None:
        check_name(config.model.model_name)
    get_estimator(training.adv_estimator).check_credit(training.credit)
    find_parser(config.inference.tool_format)
    _check_groups(training)
    _check_temperature(config)
    _check_filter(training)
    _check_engine(config)
    _check_attention(config)
    _check_schedule(config)
    check_layout(config)
    _check_logging(config)
    FailurePolicy.of(config.failures)
    _check_players(config)
    if not config.ray.use_ray:
        raise ConfigError("ray.use_ray=false is not possible: verl trains on Ray, also on one machine. Leave it out.")
    checked_verl_section(config, keys_we_set)


def _check_players(config: ConfigStore) -> None:
    players, checkpoint = Players.of(config.players).check(), config.checkpoint
    saves = checkpoint.save_interval and checkpoint.save_model and config.model.lora_merge
    if players.has_self and not saves:
        raise ConfigError(
            "A player is self, for which past checkpoints play: set checkpoint.save_interval, "
            "checkpoint.save_model=true and model.lora_merge=true, or let the first model play (frozen)."
        )
    if players.has_self and checkpoint.save_minutes:
        raise ConfigError(
            "checkpoint.save_minutes: past models of a player that is self are saved by epochs, so that a repeated run "
            "has the same. Leave it out; checkpoint.save_interval says how many epochs are between them."
        )


def _check_logging(config: ConfigStore) -> None:
    for name in (*config.logging.trackers, *config.logging.warnings):
        if ":" in name:
            import_object(name)
        elif importlib.util.find_spec(name) is None:
            raise MissingDependency(
                f"logging.trackers has {name!r}, but its package is not installed: pip install {name}, or leave it out."
            )


def _check_engine(config: ConfigStore) -> None:
    backend = resolve_backend(config)
    if backend not in ("transformers", "vllm", "sglang"):
        raise ConfigError(
            f"inference.backend={backend!r} is for evaluation only: use transformers, vllm or sglang to train."
        )
    if backend == "transformers" and resolve_device(config) != "cpu":
        raise ConfigError(
            "In training, the transformers engine runs on CPUs only, and would be given no GPU: set "
            "inference.backend=vllm, or model.device=cpu."
        )
    if backend == "transformers" and config.model.tensor_parallel_size != 1:
        raise ConfigError("The transformers engine does not shard a model: set model.tensor_parallel_size=1.")
    if backend == "sglang" and resolve_device(config) == "cpu":
        raise ConfigError("SGLang has no CPU build that pip can install: use inference.backend=transformers or vllm.")


def _check_attention(config: ConfigStore) -> None:
    device, dtype = resolve_device(config), resolve_dtype(config)
    if resolve_attention(config) != "flash_attention_2":
        return
    if device == "cpu" or dtype == "float32":
        raise ConfigError(
            "model.attn_implementation=flash_attention_2 computes on GPUs and in bfloat16 or float16 only, not on "
            f"{device} in {dtype}: leave it out, or use sdpa."
        )
    if not config.ray.address and not has_flash_attention():  # the machines of a cluster may have what this one lacks
        raise MissingDependency(
            "model.attn_implementation=flash_attention_2 needs flash-attn, which is not installed: "
            f"{install_line('flash-attn', '--no-build-isolation')}, or leave the setting out."
        )


def _check_groups(training: TrainingConfig) -> None:
    if training.batch_size % training.group_size:
        below = training.batch_size // training.group_size * training.group_size
        near = f"{below} or {below + training.group_size}" if below else str(training.group_size)
        raise ConfigError(
            f"training.batch_size={training.batch_size} is not a multiple of training.group_size="
            f"{training.group_size}: a batch is made of whole groups. Set batch_size to {near}."
        )
    # An estimator of the user's own may do anything with a single episode.
    compares = ":" not in training.adv_estimator and get_estimator(training.adv_estimator).compares_groups
    if training.group_size == 1 and training.credit == "episode" and compares:
        raise ConfigError(
            f"training.group_size=1: {training.adv_estimator} compares the episodes of a group with each other, so all "
            "advantages would be 0. Set training.group_size to 2 or more, or "
            "training.adv_estimator=reinforce_plus_plus."
        )
    mini_batch = training.mini_batch_size or training.batch_size
    if mini_batch % training.group_size or training.batch_size % mini_batch:
        raise ConfigError(
            f"training.mini_batch_size={mini_batch} must be a multiple of group_size={training.group_size} and divide "
            f"batch_size={training.batch_size}."
        )


def _check_temperature(config: ConfigStore) -> None:
    if config.inference.temperature <= 0.0:
        raise ConfigError(
            f"inference.temperature={config.inference.temperature:g} samples the same tokens each time, so the "
            "episodes of a group would be equal and nothing could be learned: set it above 0. "
            "evaluation.temperature=0 evaluates without sampling."
        )


def check_horizon(training: TrainingConfig, last: int, horizon: int) -> None:
    """Raise a ConfigError if training to step `last` would exceed the steps that the learning rate is planned for."""
    if training.lr_schedule == "cosine" and last > horizon:  # there verl's cosine rises again
        raise ConfigError(
            f"With training.lr_schedule=cosine the learning rate of this run ends at step {horizon}, the last that its "
            f"first fit() was asked for, so it cannot train to step {last}: ask for all steps in the first fit(), or "
            "resume the run with more training.num_epochs."
        )


def _check_filter(training: TrainingConfig) -> None:
    if not training.filter_groups:
        return
    if not get_estimator(training.adv_estimator).compares_groups or training.credit != "episode":
        raise ConfigError(
            "training.filter_groups replaces groups with equal rewards, but with "
            f"adv_estimator={training.adv_estimator} and credit={training.credit} they have a gradient: leave it out."
        )


def _check_schedule(config: ConfigStore) -> None:
    schedule = config.training.schedule
    given = {name: getattr(config.ray, name) for name in ("rollout_nodes", "rollout_gpus_per_node")}
    given = {name: value for name, value in given.items() if value}
    if given and schedule != "separate_async":
        name, value = next(iter(given.items()))
        raise ConfigError(
            f"ray.{name}={value} is for training.schedule=separate_async; in {schedule!r} the GPUs that train also "
            "generate. Leave it out."
        )
    if schedule == "separate_async" and not given:
        raise ConfigError(
            "training.schedule=separate_async needs GPUs that only generate: set ray.rollout_gpus_per_node for some on "
            "each node that trains, or ray.rollout_nodes for nodes of their own."
        )


def verl_config(
    config: ConfigStore, *, model_path: str | None = None, run_dir: str | None = None, steps: int | None = None
) -> Any:
    """verl's whole config for a run, as an OmegaConf DictConfig; settings that cannot work are a ConfigError."""
    check(config)
    check_adapter(config, model_path)
    overrides = checked_verl_section(config, keys_we_set)
    keys = keys_we_set(config, model_path=model_path, run_dir=run_dir, steps=steps)
    unchecked = from_dict({"verl_unchecked": config.verl_unchecked}).verl_unchecked
    new = {name: name if name in known_names() else f"+{name.removeprefix('+')}" for name in unchecked}
    more = {new[name]: value for name, value in unchecked.items()}
    return compose(keys | forward_keys(config, model_path) | overrides | more)


def run_header(config: ConfigStore, environment: str) -> str:
    """One line that says what is trained, and how."""
    training, model = config.training, config.model.local_path or config.model.model_name
    forward = f", {forward_words(config)}" if resolve_device(config) == "cuda" else ""
    return (
        f"{environment} · {model} · {training.adv_estimator}, {training.batch_size} episodes a step in "
        f"groups of {training.group_size} · {resolve_backend(config)} on {resolve_device(config)}{forward}"
    )
