"""The names that other tools have for our settings: whoever types one is told ours.

From TRL, verl, verifiers and prime-rl, OpenRLHF, SkyRL and Stable-Baselines3. A test checks that the pages under
`docs/coming-from` say the same.
"""

from __future__ import annotations

from functools import cache

_NAMES = {
    "model.model_name": "path model_path model_name_or_path pretrain pretrained base_model",
    "model.dtype": "bf16 fp16 torch_dtype param_dtype precision",
    "model.attn_implementation": "flash_attn attn",
    "model.tensor_parallel_size": "tensor_model_parallel_size vllm_tensor_parallel_size tp tp_size "
    "inference_engine_tensor_parallel_size",
    "model.sequence_parallel_size": "ulysses_sequence_parallel_size ring_attn_size sp_size cp",
    "model.lora_rank": "r lora_r rank peft_config",
    "model.lora_alpha": "alpha",
    "inference.backend": "use_vllm vllm_mode rollout_backend",
    "inference.max_tokens (of one turn) or inference.max_episode_tokens (of all turns)": "max_completion_length "
    "max_new_tokens max_generate_length generate_max_len max_response_length response_length completion_length",
    "inference.max_prompt_tokens": "max_prompt_length prompt_max_len max_input_length prompt_length",
    "inference.max_prompt_tokens plus inference.max_episode_tokens": "max_model_len max_seq_len max_seq_length seq_len "
    "max_len max_length context_length",
    "inference.max_turns": "max_assistant_turns max_user_turns max_tool_calling_iterations num_turns n_turns",
    "inference.gpu_memory_utilization": "vllm_gpu_memory_utilization",
    "inference.max_concurrency": "max_num_seqs max_concurrent",
    "inference.thinking": "enable_thinking",
    "training.adv_estimator": "advantage_estimator advantage_type adv_type algorithm algo",
    "training.adv_estimator=dr_grpo (no scaling)": "scale_rewards norm_adv_by_std_in_grpo",
    "training.learning_rate": "lr actor_learning_rate actor_lr",
    "training.critic_learning_rate": "critic_lr critic.optim.lr",
    "training.batch_size, in episodes of the whole step": "train_batch_size rollout_batch_size global_batch_size "
    "per_device_train_batch_size gradient_accumulation_steps generation_batch_size",
    "training.group_size": "num_generations rollouts_per_example n_samples_per_prompt rollout_n n num_samples "
    "samples_per_prompt rollouts group num_rollouts",
    "training.filter_groups": "dynamic_filtering dynamic_sampling",
    "training.mini_batch_size": "ppo_mini_batch_size policy_mini_batch_size",
    "training.micro_batch_size": "micro_train_batch_size micro_rollout_batch_size ppo_micro_batch_size "
    "ppo_micro_batch_size_per_gpu log_prob_micro_batch_size_per_gpu micro_train_batch_size_per_gpu "
    "micro_forward_batch_size_per_gpu",
    "training.updates_per_batch": "num_iterations ppo_epochs num_ppo_epochs max_epochs n_epochs "
    "update_epochs_per_batch num_minibatch_epochs",
    "training.num_epochs": "num_train_epochs total_epochs epochs num_episodes",
    "training.steps_per_epoch times training.num_epochs": "max_steps total_steps total_training_steps num_steps "
    "num_train_steps train_steps training_steps steps iterations total_timesteps",
    "training.gamma": "discount discount_factor",
    "training.lam": "lambda lambd gae_lambda",
    "training.policy_loss": "loss_mode loss_fn",
    "training.policy_loss=gspo": "importance_sampling_level",
    "training.clip_ratio": "epsilon eps_clip cliprange clip_range clip_eps eps_clip_low clip_ratio_low ppo_clip",
    "training.clip_ratio_high": "epsilon_high eps_clip_high",
    "training.clip_ratio and training.clip_ratio_high": "eps_clip_low_high",
    "training.loss_aggregation": "loss_type loss_agg_mode loss_reduction",
    "training.entropy_coef": "entropy_coeff entropy_loss_coef ent_coef",
    "training.use_kl_loss": "use_kl",
    "training.kl_coef, with training.use_kl_loss=true": "beta kl_loss_coef kl_beta kl_weight kl_loss_weight kl_tau",
    "training.kl_coef, with training.use_kl_in_reward=true": "init_kl_coef",
    "training.kl_target": "target_kl",
    "training.rollout_correction": "vllm_importance_sampling_correction rollout_is tis use_tis",
    "training.max_grad_norm": "grad_clip max_norm gradient_clipping clip_grad",
    "training.warmup_steps": "lr_warmup_steps num_warmup_steps",
    "training.warmup_ratio": "lr_warmup_steps_ratio lr_warmup_ratio",
    "training.lr_schedule": "lr_scheduler_type lr_scheduler warmup_style scheduler",
    "training.max_staleness": "max_async_level async_level num_batches_ahead max_off_policy_steps staleness_threshold",
    "evaluation.every": "eval_steps eval_strategy eval_interval test_freq eval_every eval_freq",
    "evaluation.episodes": "num_eval_episodes n_eval_episodes",
    "failures.limit=mask": "mask_truncated_completions overlong_filtering",
    "checkpoint.output_dir": "default_local_dir ckpt_path save_path save_dir logging_dir log_dir",
    "checkpoint.run_name": "experiment_name wandb_run_name",
    "checkpoint.save_interval, in epochs": "save_steps save_freq save_strategy ckpt_interval",
    "checkpoint.keep_last_n": "save_total_limit max_ckpt_num max_actor_ckpt_to_keep keep_last",
    "ray.num_nodes": "nnodes actor_num_nodes",
    "ray.gpus_per_node": "n_gpus_per_node num_gpus actor_num_gpus_per_node num_gpus_per_node n_gpus",
    "logging.trackers": "report_to logger use_wandb wandb tracker",
    "logging.project": "project_name wandb_project",
}


@cache
def names_elsewhere() -> dict[str, str]:
    """Each name of another tool, and what to write here."""
    return {name: ours for ours, names in _NAMES.items() for name in names.split()}


def known_elsewhere(key: str) -> str | None:
    """What a setting that we do not have is called here, as a sentence; None: no tool in the table has it either.

    Example:
        >>> known_elsewhere("training.num_generations")
        'Here it is training.group_size.'
    """
    ours = names_elsewhere().get(key) or names_elsewhere().get(key.rpartition(".")[2])
    return f"Here it is {ours}." if ours else None
