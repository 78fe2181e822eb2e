"""Settings that are unknown or cannot work together, refused in words before anything starts."""

from __future__ import annotations

from collections.abc import Collection

from turnsmith.config import ConfigStore, TrainingConfig
from turnsmith.errors import ConfigError
from turnsmith.rollout.failure_policy import FailurePolicy
from turnsmith.tools.parsing.formats import FORMATS
from turnsmith.trainer.advantages import CREDITS, ESTIMATORS, check_combination
from turnsmith.trainer.config.auto import (
    DTYPES,
    LOSS_AGGREGATIONS,
    POLICY_LOSSES,
    ROLLOUT_CORRECTIONS,
    SCHEDULES,
    resolve_backend,
    resolve_device,
)
from turnsmith.trainer.config.layout import check_layout
from turnsmith.trainer.verl.rollout_registry import TRANSFORMERS
from turnsmith.trainer.verl.trackers import check_trackers


def check(config: ConfigStore) -> None:
    """Raise a ConfigError for settings that are unknown, cannot work together or would have no effect."""
    training = config.training
    _check_names(config)
    _check_smallest(config)
    check_combination(training.adv_estimator, training.credit)
    _check_groups(training)
    _check_engine(config)
    _check_schedule(config)
    check_layout(config)
    check_trackers(config.logging.trackers)
    FailurePolicy.of(config.failures)
    if training.kl_target is not None and not training.use_kl_in_reward:
        raise ConfigError(
            "training.kl_target adapts the KL term of the reward, which is off: set training.use_kl_in_reward=true."
        )
    if not config.ray.use_ray:
        raise ConfigError("ray.use_ray=false is not possible: verl trains on Ray, also on one machine. Leave it out.")
    if config.verl:
        # Imported late: what turnsmith sets itself is known to the mapping, which needs this check.
        from turnsmith.trainer.config.to_verl import keys_we_set
        from turnsmith.trainer.config.verl_overrides import checked_verl_section

        checked_verl_section(config, keys_we_set)


def _check_names(config: ConfigStore) -> None:
    training = config.training
    _one_of("model.device", config.model.device, ("auto", "cpu", "cuda"))
    _one_of("model.dtype", config.model.dtype, ("auto", *DTYPES))
    _one_of("inference.backend", config.inference.backend, ("auto", TRANSFORMERS, "vllm", "sglang"))
    _one_of("inference.tool_format", config.inference.tool_format, FORMATS)
    _one_of("training.adv_estimator", training.adv_estimator, ESTIMATORS)
    _one_of("training.credit", training.credit, CREDITS)
    _one_of("training.policy_loss", training.policy_loss, POLICY_LOSSES)
    _one_of("training.loss_aggregation", training.loss_aggregation, LOSS_AGGREGATIONS)
    _one_of("training.rollout_correction", training.rollout_correction, ROLLOUT_CORRECTIONS)
    _one_of("training.schedule", training.schedule, SCHEDULES)


def _check_smallest(config: ConfigStore) -> None:
    smallest = {
        1: "training.batch_size training.group_size training.micro_batch_size training.updates_per_batch "
        "training.num_epochs training.steps_per_epoch training.max_staleness evaluation.episodes ray.num_nodes "
        "ray.gpus_per_node model.tensor_parallel_size model.sequence_parallel_size",
        0: "failures.stall_seconds ray.num_actors ray.rollout_nodes checkpoint.save_interval training.warmup_steps "
        "model.lora_rank evaluation.every evaluation.temperature",
    }
    for least, names in smallest.items():
        for name in names.split():
            section, _, field = name.partition(".")
            value = getattr(getattr(config, section), field)
            if value is not None and value < least:
                raise ConfigError(f"{name}={value} must be at least {least}.")


def _check_engine(config: ConfigStore) -> None:
    if resolve_backend(config) == TRANSFORMERS and config.model.tensor_parallel_size != 1:
        raise ConfigError("The transformers engine does not split a model: set model.tensor_parallel_size=1.")
    if resolve_backend(config) == "sglang" and resolve_device(config) == "cpu":
        raise ConfigError("SGLang has no CPU build that pip can install: use inference.backend=transformers or vllm.")


def _check_groups(training: TrainingConfig) -> None:
    if training.batch_size % training.group_size:
        raise ConfigError(
            f"training.batch_size={training.batch_size} is not a multiple of training.group_size="
            f"{training.group_size}: a batch is made of whole groups. Set batch_size to a multiple of group_size."
        )
    mini_batch = training.mini_batch_size or training.batch_size
    if mini_batch % training.group_size or training.batch_size % mini_batch:
        raise ConfigError(
            f"training.mini_batch_size={mini_batch} must be a multiple of group_size={training.group_size} and divide "
            f"batch_size={training.batch_size}."
        )


def _check_schedule(config: ConfigStore) -> None:
    schedule, rollout_nodes = config.training.schedule, config.ray.rollout_nodes
    if rollout_nodes and schedule != "separate_async":
        raise ConfigError(
            f"ray.rollout_nodes={rollout_nodes} is for training.schedule=separate_async; in {schedule!r} the GPUs that "
            "train also generate. Leave it out."
        )
    if schedule == "separate_async":
        # Its keys of verl are there (`_schedule` in config_mapping), but it takes GPUs of its own to write the trainer.
        raise ConfigError("training.schedule='separate_async' cannot run yet: use sync or colocate_async.")


def _one_of(name: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise ConfigError(f"{name}={value!r} is unknown: use one of {', '.join(known)}.")
