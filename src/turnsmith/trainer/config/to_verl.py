"""Maps our settings to verl's: every key of verl that we set, and to what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from turnsmith.config import ConfigStore
from turnsmith.rollout.failure_policy import FailurePolicy
from turnsmith.trainer.advantages import get_estimator
from turnsmith.trainer.config.layout import (
    episode_workers,
    gpu_share,
    learning_rate,
    micro_batch_size,
    micro_batch_tokens,
    resolve_attention,
    resolve_backend,
    resolve_device,
    resolve_dtype,
    rollout_layout,
    sends_adapter,
    storage_units,
)
from turnsmith.trainer.dataset import CustomEnvironmentDataset, steps_in_epoch

AGENT_LOOP = "turnsmith"
"""The name of our agent loop in verl's registry."""
CHECKPOINT_ENGINE = "turnsmith"
"""The name of our checkpoint engine in verl's registry."""
_POLICY_LOSSES = {"ppo": "vanilla", "gspo": "gspo", "cispo": "cispo"}
"""Our names of policy losses, and verl's."""

_SHORT_DTYPES = {"float32": "fp32", "float16": "fp16"}
"""Dtypes other than verl's default, by verl's name for them."""


def verl_keys(config: ConfigStore, *, model_path: str, run_dir: str, starts: str, steps: int) -> dict[str, Any]:
    """Every key of verl that we set, by dotted name."""
    keys = _data(config, starts) | _model(config, model_path) | _actor(config) | _critic(config, model_path)
    keys |= _rollout(config) | _algorithm(config) | _trainer(config, run_dir, steps) | _schedule(config)
    keys |= attention_keys(resolve_attention(config)) | _micro_batches(config)
    return keys | (_cpu(config) if resolve_device(config) == "cpu" else {})


def _data(config: ConfigStore, starts: str) -> dict[str, Any]:
    inference, training = config.inference, config.training
    return {
        "data.train_files": starts,
        "data.val_files": starts,
        "data.custom_cls.path": "pkg://turnsmith.trainer.verl.dataset",
        "data.custom_cls.name": "EpisodeDataset",
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
        "actor_rollout_ref.model.lora_rank": config.model.lora_rank,
        "actor_rollout_ref.model.lora_alpha": config.model.lora_alpha,
        "actor_rollout_ref.model.lora.merge": config.model.lora_rank > 0 and config.model.lora_merge,
    }


def _actor(config: ConfigStore) -> dict[str, Any]:
    training = config.training
    prompts_per_mini_batch = (training.mini_batch_size or training.batch_size) // training.group_size
    actor: dict[str, Any] = {
        "strategy": "fsdp2",
        "ppo_mini_batch_size": prompts_per_mini_batch,
        "ppo_epochs": training.updates_per_batch,
        "policy_loss.loss_mode": _POLICY_LOSSES.get(training.policy_loss, training.policy_loss),
        "clip_ratio": training.clip_ratio,
        "clip_ratio_low": training.clip_ratio,
        "clip_ratio_high": training.clip_ratio if training.clip_ratio_high is None else training.clip_ratio_high,
        "loss_agg_mode": training.loss_aggregation,
        **_loss_scale(config),
        "entropy_coeff": training.entropy_coef,
        "use_kl_loss": training.use_kl_loss,
        "kl_loss_coef": training.kl_coef,
        **_optimizer(config, learning_rate(config)),
        "grad_clip": training.max_grad_norm,
        "data_loader_seed": training.seed,
        # verl validates this one, and uses those in fsdp_config.
        "ulysses_sequence_parallel_size": config.model.sequence_parallel_size,
        **_fsdp("fsdp_config", config),
        **_checkpoint("checkpoint"),
        **({"+checkpoint.save_lora_only": True} if sends_adapter(config) else {}),
    }
    keys = {_join("actor_rollout_ref.actor", name): value for name, value in actor.items()}
    keys["actor_rollout_ref.ref.strategy"] = "fsdp2"
    return keys | {_join("actor_rollout_ref.ref", name): value for name, value in _fsdp("fsdp_config", config).items()}


def _critic(config: ConfigStore, model_path: str) -> dict[str, Any]:
    """The critic is the same model with a value head; verl builds it only where it is enabled."""
    training = config.training
    critic: dict[str, Any] = {
        "enable": get_estimator(training.adv_estimator).needs_critic,
        "strategy": "fsdp2",
        "model.path": model_path,
        "model.trust_remote_code": config.model.trust_remote_code,
        **_optimizer(config, training.critic_learning_rate),
        "grad_clip": training.max_grad_norm,
        "data_loader_seed": training.seed,
        **_fsdp("fsdp", config),
        **_checkpoint("checkpoint"),
    }
    return {_join("critic", name): value for name, value in critic.items()}


def attention_keys(chosen: str) -> dict[str, Any]:
    """verl's settings for an attention of the trainer: it asks for flash_attention_2, and concatenates episodes.

    transformers' own two keep concatenated episodes apart by a mask of all tokens squared.
    """
    keys: dict[str, Any] = {}
    for model in ("actor_rollout_ref.model", "critic.model"):
        keys[f"+{model}.override_config.attn_implementation"] = chosen
        keys[f"{model}.use_remove_padding"] = chosen not in ("sdpa", "eager")
    return keys


def _micro_batches(config: ConfigStore) -> dict[str, Any]:
    """How a rank's share is divided into forward passes: by episodes, or by tokens."""
    episodes, tokens = micro_batch_size(config), micro_batch_tokens(config)
    actor, ref, rollout = (f"actor_rollout_ref.{part}" for part in ("actor", "ref", "rollout"))
    keys: dict[str, Any] = {
        f"{actor}.ppo_micro_batch_size_per_gpu": episodes,
        f"{ref}.log_prob_micro_batch_size_per_gpu": episodes,
        f"{rollout}.log_prob_micro_batch_size_per_gpu": episodes,
        "critic.ppo_micro_batch_size_per_gpu": episodes,
    }
    for name in (f"{actor}.", f"{ref}.log_prob_", f"{rollout}.log_prob_", "critic."):
        keys[f"{name}use_dynamic_bsz"] = tokens > 0
    if tokens:
        keys |= {f"{part}.log_prob_max_token_len_per_gpu": tokens for part in (ref, rollout)}
        keys |= {f"{part}.ppo_max_token_len_per_gpu": tokens for part in (actor, "critic")}
        keys["+critic.ppo_infer_max_token_len_per_gpu"] = tokens  # the one that verl's V1 trainer reads
    return keys


def _loss_scale(config: ConfigStore) -> dict[str, Any]:
    if config.training.loss_aggregation != "seq-mean-token-sum-norm":
        return {}
    # The T of its formula; verl's default is the length of the longest row of a micro-batch.
    return {"loss_scale_factor": config.inference.max_episode_tokens}


def _optimizer(config: ConfigStore, learning_rate: float) -> dict[str, Any]:
    training, warmup = config.training, config.training.warmup_steps
    is_share = warmup < 1
    return {
        "optim.lr": learning_rate,
        "optim.lr_warmup_steps": 0 if is_share else int(warmup) * updates_per_step(config),  # verl counts updates
        "optim.lr_warmup_steps_ratio": warmup if is_share else 0.0,
        "optim.lr_scheduler_type": training.lr_schedule,
        "optim.min_lr_ratio": 0.0,
        "optim.weight_decay": training.weight_decay,
        "optim.clip_grad": training.max_grad_norm,
    }


def _fsdp(place: str, config: ConfigStore) -> dict[str, Any]:
    dtype = resolve_dtype(config)
    keys: dict[str, Any] = {
        f"{place}.strategy": "fsdp2",
        f"{place}.seed": config.training.seed,
        f"{place}.ulysses_sequence_parallel_size": config.model.sequence_parallel_size,
    }
    if config.training.offload != "none":
        keys |= {f"{place}.optimizer_offload": True, f"{place}.param_offload": config.training.offload == "all"}
    if dtype in _SHORT_DTYPES:
        mixed = {"param_dtype": _SHORT_DTYPES[dtype], "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
        keys |= {f"{place}.dtype": dtype, f"+{place}.mixed_precision": mixed}
    return keys


def _checkpoint(place: str) -> dict[str, Any]:
    # No `hf_model`: verl labels it bfloat16 whatever it is, and with LoRA nothing can load it. We write our own.
    state = ["model", "optimizer", "extra"]
    return {f"{place}.save_contents": state, f"{place}.load_contents": state}


def _rollout(config: ConfigStore) -> dict[str, Any]:
    inference = config.inference
    rollout = {
        "name": resolve_backend(config),
        "mode": "async",
        "n": config.training.group_size,
        "temperature": inference.temperature,
        "top_p": inference.top_p,
        "top_k": inference.top_k,
        "dtype": resolve_dtype(config),
        "seed": config.training.seed,
        "tensor_model_parallel_size": config.model.tensor_parallel_size,
        "gpu_memory_utilization": gpu_share(config),
        "max_num_seqs": inference.max_concurrency,
        "max_model_len": inference.max_prompt_tokens + inference.max_episode_tokens,
        "max_num_batched_tokens": 8192,
        "calculate_log_probs": True,
        "agent.default_agent_loop": AGENT_LOOP,
        "agent.num_workers": max(1, episode_workers(config)),
    }
    return {_join("actor_rollout_ref.rollout", name): value for name, value in rollout.items()}


def _algorithm(config: ConfigStore) -> dict[str, Any]:
    training, correction = config.training, config.training.importance_weights
    return {
        "algorithm.adv_estimator": f"turnsmith_{training.adv_estimator}_{training.credit}",
        "algorithm.gamma": training.gamma,
        "algorithm.lam": training.lam,
        "algorithm.use_kl_in_reward": training.use_kl_in_reward,
        "algorithm.kl_ctrl.kl_coef": training.kl_coef,
        "algorithm.kl_ctrl.type": "fixed",
        "algorithm.kl_ctrl.target_kl": 0.1,
        "algorithm.rollout_correction.rollout_is": None if correction == "none" else correction,
    }


def _trainer(config: ConfigStore, run_dir: str, steps: int) -> dict[str, Any]:
    return {
        "trainer.nnodes": config.ray.num_nodes,
        "trainer.n_gpus_per_node": config.ray.gpus_per_node,
        "trainer.device": resolve_device(config),
        "trainer.logger": [name for name in config.logging.trackers if ":" not in name],
        "trainer.project_name": config.logging.project,
        "trainer.experiment_name": Path(run_dir).name,
        "trainer.default_local_dir": str(Path(run_dir) / "checkpoints"),
        # Over these the learning rate warms up and falls; `EpisodeTrainer.continue_until` decides where training ends.
        "trainer.total_training_steps": steps,
        "trainer.total_epochs": max(1, steps),
        "trainer.save_freq": -1,
        # `records.checkpoints` deletes old ones; verl would look for the names that they had while being written.
        "trainer.max_actor_ckpt_to_keep": None,
        "trainer.max_critic_ckpt_to_keep": None,
        "trainer.test_freq": -1,
        "trainer.val_before_train": False,
        "trainer.resume_mode": "disable",
        # Rewards come from the environment, within the episode: no reward workers.
        "reward.num_workers": 0,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": storage_units(config),
        # verl's limit is 100,000 episodes, divided over the units; an episode that does not fit fails the run.
        "transfer_queue.backend.SimpleStorage.total_storage_size": None,
        # Not on a node without CPUs, such as the head of many clusters: a unit would wait there for ever.
        "+transfer_queue.backend.SimpleStorage.required_node_resource": "CPU",
    }


def _schedule(config: ConfigStore) -> dict[str, Any]:
    training, schedule = config.training, config.training.schedule
    keys: dict[str, Any] = {
        "trainer.v1.trainer_mode": schedule,
        # verl counts versions of the weights, the first included.
        "trainer.v1.sampler.max_off_policy_threshold": training.max_staleness + 1,
        "trainer.v1.sampler.max_off_policy_strategy": "wait",
        # verl then fetches starts one by one; only where groups are replaced.
        "trainer.v1.sampler.sync_refill_failed_groups": FailurePolicy.of(config.failures).drops
        or training.filter_groups,
    }
    if schedule == "colocate_async":
        # One batch ahead: no rank waits for the slowest episode, and none lags more than one step behind.
        keys["trainer.v1.colocate_async.num_warmup_batches"] = 1
    if schedule == "separate_async":
        nodes, gpus = rollout_layout(config)
        engine = "actor_rollout_ref.rollout.checkpoint_engine"
        is_cpu = resolve_device(config) == "cpu"
        keys |= {
            # As far ahead as the limit allows: generation stands still only when everything allowed is generated.
            "trainer.v1.separate_async.num_warmup_batches": training.max_staleness,
            "trainer.v1.separate_async.parameter_sync_step": updates_per_step(config),
            "actor_rollout_ref.hybrid_engine": False,
            "actor_rollout_ref.rollout.nnodes": nodes,
            "actor_rollout_ref.rollout.n_gpus_per_node": gpus,
            f"{engine}.backend": CHECKPOINT_ENGINE,
            f"{engine}.custom_backend_module": "turnsmith.trainer.verl.checkpoint_engine",
            f"+{engine}.engine_kwargs.{CHECKPOINT_ENGINE}.torch_backend": "gloo" if is_cpu else "nccl",
        }
    return keys


def updates_per_step(config: ConfigStore) -> int:
    """How often verl is asked to update the model in one step: with `separate_async`, once for each mini-batch."""
    training = config.training
    mini_batches = training.batch_size // (training.mini_batch_size or training.batch_size)
    return mini_batches if training.schedule == "separate_async" else 1


def _cpu(config: ConfigStore) -> dict[str, Any]:
    longest = config.inference.max_prompt_tokens + config.inference.max_episode_tokens
    return {
        "actor_rollout_ref.model.enable_gradient_checkpointing": False,
        "actor_rollout_ref.actor.use_torch_compile": False,
        "actor_rollout_ref.actor.fsdp_config.use_torch_compile": False,
        "actor_rollout_ref.ref.use_torch_compile": False,
        "actor_rollout_ref.ref.fsdp_config.use_torch_compile": False,
        "critic.fsdp.use_torch_compile": False,
        "critic.model.enable_gradient_checkpointing": False,
        "actor_rollout_ref.rollout.enforce_eager": True,
        # A split prompt whose sampling has a seed ends vLLM 0.31 on a CPU (tests/e2e/test_vllm_engine.py).
        "actor_rollout_ref.rollout.enable_chunked_prefill": False,
        "actor_rollout_ref.rollout.max_num_batched_tokens": max(8192, longest),
        "actor_rollout_ref.rollout.free_cache_engine": False,
        "+actor_rollout_ref.rollout.enable_sleep_mode": False,
    }


def keys_we_set(
    config: ConfigStore, *, model_path: str | None = None, run_dir: str | None = None, steps: int | None = None
) -> dict[str, Any]:
    """Every key of verl that we set; what is not given is as in a dry run."""
    training, checkpoint = config.training, config.checkpoint
    folder = run_dir or str(Path(checkpoint.output_dir) / (checkpoint.run_name or "dry-run"))
    return verl_keys(
        config,
        model_path=model_path or config.model.local_path or config.model.model_name,
        run_dir=folder,
        starts=str(Path(folder) / "starts.json"),
        steps=training.num_epochs * steps_in_epoch(config, CustomEnvironmentDataset()) if steps is None else steps,
    )


def _join(prefix: str, name: str) -> str:
    return f"+{prefix}.{name[1:]}" if name.startswith("+") else f"{prefix}.{name}"
