"""The snippets of the specification's five documents, as they stand: only `setup` reads `turnsmith`, and a model that
needs a download is the tiny one. Those that call `fit` are in `tests/e2e/test_specification_training.py`, those that
start vLLM in `tests/e2e/test_vllm_engine.py`; `test_specification_names.py` checks where each name is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.unit.specification import MY_ENVIRONMENT, run


def test_define_an_environment() -> None:
    names = run(MY_ENVIRONMENT)
    environment = names["MyEnvironment"](names["EnvironmentConfig"]())
    assert environment.reset() == "Initial state description"
    assert environment.step("x") == ("New state", 1.0, False, {})


def test_configure() -> None:
    config = run("""
from setup import ConfigStore

config = ConfigStore()

# Model
config.model.model_name = "meta-llama/Llama-2-7b-hf"
config.model.dtype = "bfloat16"

# Inference
config.inference.backend = "vllm"  # or "sglang"
config.inference.max_tokens = 256
config.inference.temperature = 0.7

# Training
config.training.learning_rate = 1e-5
config.training.num_epochs = 10
config.training.batch_size = 32
config.training.clip_ratio = 0.2

# Checkpointing
config.checkpoint.output_dir = "./checkpoints"
config.checkpoint.save_interval = 5

config.training.adv_estimator = "grpo"
config.ray.use_ray = True
config.ray.num_actors = 4
""")["config"]
    from turnsmith.config_sources import from_dict, to_dict

    assert from_dict(to_dict(config)) == config  # every setting is a known one


def test_make_a_trainer() -> None:
    from turnsmith import RayPPOTrainer

    names = run(
        MY_ENVIRONMENT
        + """
from setup import ConfigStore, RayPPOTrainer, create_trainer

config = ConfigStore()

def compute_reward(trajectory, environment):
    total_reward = sum(trajectory.rewards)
    return total_reward

env = MyEnvironment(config.environment)
trainer = RayPPOTrainer(
    config=config,
    environment=env,
    reward_fn=compute_reward,
    dataset=None,  # Optional: provide dataset
)
other = create_trainer(
    config=config,
    environment=env,
    tokenizer=None,
)
for metric_dict in trainer.metrics_history:
    print(f"Epoch {metric_dict['epoch']}: {metric_dict['policy_loss']}")
trainer.cleanup()
"""
    )
    assert isinstance(names["other"], RayPPOTrainer)


def test_trajectory() -> None:
    trajectory = run("""
from setup import Trajectory
trajectory = Trajectory()
trajectory.states = ["state1", "state2"]
trajectory.actions = ["action1", "action2"]
trajectory.rewards = [1.0, 0.5]
trajectory.dones = [False, True]
""")["trajectory"]
    assert trajectory.total_reward == 1.5
    assert run("from setup import RolloutData\nbatch = RolloutData([one])", one=trajectory)["batch"].rewards == [1.5]


def test_algo() -> None:
    torch.manual_seed(0)
    shape = (4, 6)
    mask = torch.ones(shape)
    names = run(
        """
from setup import algo

# GAE (Generalized Advantage Estimation)
advantages, returns = algo.compute_gae_advantage_return(
    token_level_rewards=rewards,  # (batch, seq_len)
    values=values,                 # (batch, seq_len)
    response_mask=mask,            # (batch, seq_len)
    gamma=0.99,
    lam=0.95,
)

# GRPO (Group Relative Policy Optimization)
advantages, returns = algo.compute_grpo_advantage(
    token_level_rewards=rewards,
    response_mask=mask,
    index=group_indices,  # For grouping samples
)
# PPO policy loss with clipping
policy_loss, metrics = algo.compute_policy_loss(
    old_log_probs=old_lp,
    log_probs=new_lp,
    advantages=advantages,
    response_mask=mask,
    clip_ratio=0.2,
)

# Value function loss
value_loss, metrics = algo.compute_value_loss(
    vpreds=values,
    returns=returns,
    old_values=old_values,
    response_mask=mask,
    cliprange_value=0.2,
)
# Apply KL penalty to rewards (for instruction-following)
penalized_rewards, kl_value = algo.apply_kl_penalty(
    token_level_rewards=rewards,
    log_probs=lp,
    ref_log_probs=ref_lp,
    response_mask=mask,
    kl_coef=0.01,
)

# Adaptive KL controller
kl_ctrl = algo.KLController(
    init_kl_coef=0.01,
    target_kl=0.01,
    adaptive=True,
)
kl_ctrl.update(current_kl=0.015, n_steps=1024)
""",
        rewards=torch.randn(shape),
        values=torch.randn(shape),
        old_values=torch.randn(shape),
        mask=mask,
        group_indices=["a", "a", "b", "b"],
        old_lp=-torch.rand(shape),
        new_lp=-torch.rand(shape),
        lp=-torch.rand(shape),
        ref_lp=-torch.rand(shape),
    )
    assert torch.isfinite(names["policy_loss"])
    assert torch.isfinite(names["value_loss"])
    assert names["penalized_rewards"].shape == shape


def test_custom_dataset_and_reward(tiny_folder: str) -> None:
    from transformers import AutoTokenizer

    names = run(
        """
from setup import CustomEnvironmentDataset, EnvironmentRewardWrapper, SimpleGameEnvironment, RayPPOTrainer, ConfigStore

environment = SimpleGameEnvironment()
# Create dataset from environment
dataset = CustomEnvironmentDataset(environment, tokenizer)
print(f'Dataset size: {len(dataset)}')
print(f'Sample: {dataset[0]}')

# Wrap reward function
reward_wrapper = EnvironmentRewardWrapper(environment, reward_fn)
rewards = reward_wrapper.compute_batch_rewards(responses)

trainer = RayPPOTrainer(
    config=ConfigStore(),
    environment=environment,
    reward_fn=reward_wrapper,
    dataset=dataset,
)
""",
        tokenizer=AutoTokenizer.from_pretrained(tiny_folder),
        reward_fn=lambda trajectory, environment: sum(trajectory.rewards) + environment.step_count,
        responses=["move north", "sing"],
    )
    row = names["dataset"][0]
    assert "Quest: bring the sword" in row["prompt"]
    assert len(row["input_ids"]) == len(row["attention_mask"])
    assert names["rewards"].tolist() == pytest.approx([1.1, 0.9])
    assert names["trainer"].dataset is names["dataset"]


def test_the_environment_as_a_tool() -> None:
    names = run("""
from setup import EnvironmentStepTool, JSONActionParser, MultiTurnManager, ReActActionParser, ToolRegistry
from setup import SimpleGameEnvironment
env = SimpleGameEnvironment()
registry = ToolRegistry()
registry.register(EnvironmentStepTool(env))
manager = MultiTurnManager(registry, JSONActionParser(), env)
turn = manager.step('{"tool": "environment_step", "arguments": {"action": "move north"}}', env.reset())
manager = MultiTurnManager(registry, ReActActionParser(), env)
other = manager.step('Thought: on.\\nAction: environment_step\\nAction Input: {"action": "move east"}')
""")
    assert "You go north." in names["turn"].tool_call.result.text
    assert "You go east." in names["other"].tool_call.result.text


def test_saving_before_training_is_told_in_words(tmp_path: Path) -> None:
    from turnsmith import TrainingFailure

    with pytest.raises(TrainingFailure, match="nothing to save"):
        run(
            """
from setup import ConfigStore, RayPPOTrainer, SimpleGameEnvironment
config = ConfigStore()
trainer = RayPPOTrainer(config, SimpleGameEnvironment(config.environment))
trainer.save_checkpoint(folder / "epoch_5")
""",
            folder=tmp_path,
        )
