"""Turns our settings into verl's: its own defaults, composed by hydra, with what we decide written over them.

Imports no verl: its YAML files are read where the package lies, so a dry run stays quick and needs no accelerator.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection
from pathlib import Path
from typing import Any

from turnwise.config import ConfigStore, TrainingConfig
from turnwise.errors import ConfigError, MissingDependency
from turnwise.tools.formats import FORMATS
from turnwise.trainer.verl.rollout_registry import AGENT_LOOP, TRANSFORMERS

ESTIMATORS = (
    "grpo",
    "grpo_passk",
    "rloo",
    "opo",
    "gpg",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
)
"""Advantage estimators of verl that need no critic and have a data path in its V1 trainer."""
_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def device_of(config: ConfigStore) -> str:
    """`cpu` or `cuda`: what the settings say, or what the machine has."""
    if config.model.device != "auto":
        return config.model.device
    # The driver's device file, because asking torch would cost the user's process a second of import. A cluster that is
    # joined by its address is taken to have GPUs, whatever this machine has.
    return "cuda" if Path("/dev/nvidia0").exists() or config.ray.address else "cpu"


def backend_of(config: ConfigStore) -> str:
    """The rollout engine's name: what the settings say, or the one that fits the device."""
    if config.inference.backend != "auto":
        return config.inference.backend
    return TRANSFORMERS if device_of(config) == "cpu" else "vllm"


def dtype_of(config: ConfigStore) -> str:
    """The dtype in which model and rollout compute."""
    if config.model.dtype != "auto":
        return config.model.dtype
    return "float32" if device_of(config) == "cpu" else "bfloat16"


def check(config: ConfigStore) -> None:
    """Raise a ConfigError for settings that are unknown or cannot work together."""
    training = config.training
    _one_of("model.device", config.model.device, ("auto", "cpu", "cuda"))
    _one_of("model.dtype", config.model.dtype, ("auto", *_DTYPES))
    _one_of("inference.backend", config.inference.backend, ("auto", TRANSFORMERS, "vllm", "sglang"))
    _one_of("inference.tool_format", config.inference.tool_format, FORMATS)
    _one_of("training.adv_estimator", training.adv_estimator, ESTIMATORS)
    for name, value in {
        "training.batch_size": training.batch_size,
        "training.group_size": training.group_size,
        "training.micro_batch_size": training.micro_batch_size,
        "training.steps_per_epoch": training.steps_per_epoch,
        "ray.num_nodes": config.ray.num_nodes,
        "ray.gpus_per_node": config.ray.gpus_per_node,
    }.items():
        if value < 1:
            raise ConfigError(f"{name}={value} must be at least 1.")
    _check_groups(training)
    if backend_of(config) == TRANSFORMERS and config.model.tensor_parallel_size != 1:
        raise ConfigError("The transformers engine does not split a model: set model.tensor_parallel_size=1.")
    if backend_of(config) == "sglang" and device_of(config) == "cpu":
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


def _one_of(name: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise ConfigError(f"{name}={value!r} is unknown: use one of {', '.join(known)}.")


def overrides(config: ConfigStore, *, model_path: str, run_dir: str, starts: str, steps: int) -> dict[str, Any]:
    """Every key of verl that we set, by dotted name."""
    keys = _data(config, starts) | _model(config, model_path) | _actor(config) | _rollout(config)
    keys |= _algorithm(config) | _trainer(config, run_dir, steps)
    return keys | (_cpu(config) if device_of(config) == "cpu" else {})


def _data(config: ConfigStore, starts: str) -> dict[str, Any]:
    inference, training = config.inference, config.training
    return {
        "data.train_files": starts,
        "data.val_files": starts,
        "data.custom_cls.path": "pkg://turnwise.trainer.verl.starts",
        "data.custom_cls.name": "EpisodeStarts",
        "data.max_prompt_length": inference.max_prompt_tokens,
        "data.max_response_length": inference.max_episode_tokens,
        "data.train_batch_size": training.batch_size // training.group_size,
        "data.shuffle": False,
        "data.seed": training.seed,
        "data.dataloader_num_workers": 0,
        "data.trust_remote_code": config.model.trust_remote_code,
    }


def _model(config: ConfigStore, model_path: str) -> dict[str, Any]:
    return {
        "actor_rollout_ref.model.path": model_path,
        "actor_rollout_ref.model.trust_remote_code": config.model.trust_remote_code,
    }


def _actor(config: ConfigStore) -> dict[str, Any]:
    training, dtype = config.training, _DTYPES[dtype_of(config)]
    prompts_per_mini_batch = (training.mini_batch_size or training.batch_size) // training.group_size
    actor: dict[str, Any] = {
        "strategy": "fsdp2",
        "ppo_mini_batch_size": prompts_per_mini_batch,
        "ppo_micro_batch_size_per_gpu": training.micro_batch_size,
        "ppo_epochs": training.updates_per_batch,
        "clip_ratio": training.clip_ratio,
        "clip_ratio_low": training.clip_ratio,
        "clip_ratio_high": training.clip_ratio,
        "entropy_coeff": training.entropy_coef,
        "use_kl_loss": training.use_kl_loss,
        "kl_loss_coef": training.kl_coef,
        "optim.lr": training.learning_rate,
        "optim.lr_warmup_steps": training.warmup_steps,
        "optim.weight_decay": training.weight_decay,
        "optim.clip_grad": training.max_grad_norm,
        "grad_clip": training.max_grad_norm,
        "fsdp_config.strategy": "fsdp2",
        "fsdp_config.seed": training.seed,
        "data_loader_seed": training.seed,
        "checkpoint.save_contents": ["model", "optimizer", "extra"]
        + (["hf_model"] if config.checkpoint.save_model else []),
        "checkpoint.load_contents": ["model", "optimizer", "extra"],
    }
    if dtype == "fp32":
        actor |= {
            "fsdp_config.dtype": "float32",
            "+fsdp_config.mixed_precision": {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
        }
    keys = {_join("actor_rollout_ref.actor", name): value for name, value in actor.items()}
    keys["actor_rollout_ref.ref.strategy"] = "fsdp2"
    keys["actor_rollout_ref.ref.fsdp_config.strategy"] = "fsdp2"
    keys["actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu"] = training.micro_batch_size
    return keys


def _rollout(config: ConfigStore) -> dict[str, Any]:
    inference = config.inference
    rollout = {
        "name": backend_of(config),
        "mode": "async",
        "n": config.training.group_size,
        "temperature": inference.temperature,
        "top_p": inference.top_p,
        "top_k": inference.top_k,
        "dtype": dtype_of(config),
        "seed": config.training.seed,
        "tensor_model_parallel_size": config.model.tensor_parallel_size,
        "gpu_memory_utilization": inference.gpu_memory_utilization,
        "max_num_seqs": inference.max_concurrency,
        "max_model_len": inference.max_prompt_tokens + inference.max_episode_tokens,
        "max_num_batched_tokens": max(8192, inference.max_prompt_tokens + inference.max_episode_tokens),
        "calculate_log_probs": True,
        "log_prob_micro_batch_size_per_gpu": config.training.micro_batch_size,
        "agent.default_agent_loop": AGENT_LOOP,
        "agent.num_workers": max(1, config.ray.num_actors),
    }
    return {_join("actor_rollout_ref.rollout", name): value for name, value in rollout.items()}


def _algorithm(config: ConfigStore) -> dict[str, Any]:
    training = config.training
    return {
        "algorithm.adv_estimator": training.adv_estimator,
        "algorithm.gamma": training.gamma,
        "algorithm.lam": training.lam,
        "algorithm.use_kl_in_reward": training.use_kl_in_reward,
        "algorithm.kl_ctrl.kl_coef": training.kl_coef,
    }


def _trainer(config: ConfigStore, run_dir: str, steps: int) -> dict[str, Any]:
    return {
        "trainer.nnodes": config.ray.num_nodes,
        "trainer.n_gpus_per_node": config.ray.gpus_per_node,
        "trainer.device": device_of(config),
        "trainer.logger": [],
        "trainer.project_name": "turnwise",
        "trainer.experiment_name": Path(run_dir).name,
        "trainer.default_local_dir": str(Path(run_dir) / "checkpoints"),
        "trainer.total_training_steps": steps,
        "trainer.total_epochs": max(1, steps),
        "trainer.save_freq": -1,
        "trainer.max_actor_ckpt_to_keep": config.checkpoint.keep_last_n,
        "trainer.max_critic_ckpt_to_keep": config.checkpoint.keep_last_n,
        "trainer.test_freq": -1,
        "trainer.val_before_train": False,
        "trainer.resume_mode": "disable",
        "trainer.v1.trainer_mode": "sync",
        # Rewards come from the environment, inside the episode: no reward workers.
        "reward.num_workers": 0,
    }


def _cpu(config: ConfigStore) -> dict[str, Any]:
    return {
        "actor_rollout_ref.model.use_remove_padding": False,
        "actor_rollout_ref.model.enable_gradient_checkpointing": False,
        "+actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
        "actor_rollout_ref.actor.use_torch_compile": False,
        "actor_rollout_ref.actor.fsdp_config.use_torch_compile": False,
        "actor_rollout_ref.ref.use_torch_compile": False,
        "actor_rollout_ref.ref.fsdp_config.use_torch_compile": False,
        "actor_rollout_ref.rollout.enforce_eager": True,
        "actor_rollout_ref.rollout.free_cache_engine": False,
        "+actor_rollout_ref.rollout.enable_sleep_mode": False,
        # One storage actor: with verl's eight, a two-core machine waits for ever for places it does not have.
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
    }


def verl_config(
    config: ConfigStore, *, model_path: str | None = None, run_dir: str = "runs/dry-run", steps: int | None = None
) -> Any:
    """The whole verl config a run becomes, as an OmegaConf DictConfig; an unknown `verl:` key is a ConfigError."""
    check(config)
    training = config.training
    keys = overrides(
        config,
        model_path=model_path or config.model.local_path or config.model.model_name,
        run_dir=run_dir,
        starts=str(Path(run_dir) / "starts.json"),
        steps=training.num_epochs * training.steps_per_epoch if steps is None else steps,
    )
    return compose(keys | config.verl)


def compose(keys: dict[str, Any]) -> Any:
    """verl's default config with `keys` written over it; a key of `keys` that verl does not have is a ConfigError."""
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependency(
            "verl is not installed: pip install 'turnwise[cpu]' (or turnwise[gpu] on a GPU machine)."
        )
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf, open_dict
    from omegaconf.errors import OmegaConfBaseException

    GlobalHydra.instance().clear()
    folder = Path(spec.submodule_search_locations[0]) / "trainer" / "config"
    with initialize_config_dir(config_dir=str(folder), version_base=None):
        config = hydra_compose(config_name="ppo_trainer")
    for name, value in keys.items():
        key = name.removeprefix("+")
        try:
            if name.startswith("+"):
                with open_dict(config):
                    OmegaConf.update(config, key, value, force_add=True)
            else:
                OmegaConf.update(config, key, value, merge=False)
        except OmegaConfBaseException as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f"verl has no setting {key!r} ({reason}). `turnwise train ... --dry-run` prints all of its settings."
            ) from error
    return config


def _join(prefix: str, name: str) -> str:
    return f"+{prefix}.{name[1:]}" if name.startswith("+") else f"{prefix}.{name}"
