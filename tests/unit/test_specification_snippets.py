"""The snippets of the specification's five documents, as they stand: only `setup` reads `turnsmith`, and a model that
needs a download is the tiny one. Those that call `fit` are in `tests/e2e/test_specification_training.py`, those that
start vLLM in `tests/e2e/test_vllm_engine.py`; `test_specification_names.py` checks where each name is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch


def run(snippet: str, **given: Any) -> dict[str, Any]:
    """Execute a snippet with `setup` replaced, and return its names."""
    names: dict[str, Any] = dict(given)
    exec(compile(snippet.replace("setup", "turnsmith"), "seed", "exec"), names)  # noqa: S102
    return names


MY_ENVIRONMENT = '''
from setup import BaseEnvironment, EnvironmentConfig

class MyEnvironment(BaseEnvironment):
    def __init__(self, config: EnvironmentConfig):
        super().__init__(config)
        # Initialize your environment
    
    def reset(self) -> str:
        """Reset and return initial observation."""
        return "Initial state description"
    
    def step(self, action: str) -> tuple:
        """Execute action and return (observation, reward, done, info)."""
        reward = 1.0  # Compute your reward
        return "New state", reward, False, {}
    
    def get_state_description(self) -> str:
        """Return current state as text for model context."""
        return "Current state description"
'''  # noqa: W293


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


INFERENCE = """
from setup import create_inference_engine

engine = create_inference_engine(
    model_path="tiny",
    backend="transformers",
    config={
        "dtype": "bfloat16",
    }
)

output = engine.generate(
    prompts=["Hello, how are you?"],
    max_tokens=16,
    temperature=0.7,
    top_p=0.9,
)
"""


def test_inference(tiny_folder: str) -> None:
    names = run(
        INFERENCE
        + MY_ENVIRONMENT
        + """
from setup import MultiTurnInferenceEngine, BatchInferenceManager

multi_turn = MultiTurnInferenceEngine(
    engine=engine,
    max_turns=5,
    system_prompt="You are a helpful assistant.",
)

# Single turn
multi_turn.start_conversation("Initial prompt")
response = multi_turn.step(max_tokens=8)

# Full episode with environment
my_env = MyEnvironment(EnvironmentConfig())
responses = multi_turn.run_episode(
    environment=my_env,
    initial_prompt="Start playing the game.",
    max_turns=2,
)
manager = BatchInferenceManager(engine, batch_size=32)
batch = manager.generate_batch(
    prompts=large_prompt_list,
    max_tokens=4,
)
""",
        large_prompt_list=["a", "b", "c"],
    )
    names["engine"].close()
    assert len(names["output"].sequences) == 1
    assert names["output"].tokens.shape[0] == 1
    assert len(names["responses"]) == 2
    assert len(names["batch"].sequences) == 3


TOOLS = """
from setup import FunctionCallingParser, MultiTurnManager, Tool, ToolDefinition, ToolRegistry

class MyTool(Tool):
    definition = ToolDefinition(
        "my_tool", "Repeat something.", {"type": "object", "properties": {"param": {"type": "string"}}}
    )

    def execute(self, param):
        return param

registry = ToolRegistry()
registry.register(MyTool())
"""


def test_tools() -> None:
    names = run(
        TOOLS
        + MY_ENVIRONMENT
        + """
success, result = registry.execute_tool("my_tool", param="value")
parser = FunctionCallingParser()
env = MyEnvironment(EnvironmentConfig())
manager = MultiTurnManager(registry, parser, env)
turn = manager.step('<tool_call>{"name": "my_tool", "arguments": {"param": "again"}}</tool_call>', env.reset())
print(turn.tool_call.result)
summary = manager.get_episode_summary()
"""
    )
    assert (names["success"], names["result"]) == (True, "value")
    assert names["turn"].tool_call.result.text == "again"
    assert names["summary"]["tools"] == {"my_tool": {"calls": 1, "failures": 0}}


def test_multi_turn_with_tools(tiny_folder: str) -> None:
    names = run(
        INFERENCE
        + TOOLS
        + MY_ENVIRONMENT
        + """
from setup import MultiTurnInferenceEngine
env = MyEnvironment(EnvironmentConfig())
manager = MultiTurnManager(registry, FunctionCallingParser(), env)
multi_turn = MultiTurnInferenceEngine(engine, tool_manager=manager, enable_tools=True, max_turns=2)
summary = multi_turn.run_episode(env, "Go on.")
engine.close()
"""
    )
    assert len(names["summary"]) == 2


def test_architecture(tiny_folder: str) -> None:
    names = run(
        INFERENCE
        + """
from setup import CustomGameEnvironment, MultiTurnChatHarness, RewardManager

config = {
    'batch_size': 2,
    'max_turns': 5,
}
env_config = {'max_steps': config['max_turns']}
environment = CustomGameEnvironment(env_config)
harness = MultiTurnChatHarness(
    engine,
    environment,
    max_turns=config['max_turns']
)
reward_manager = RewardManager(environment)
prompts = [
    "You are in a game. Explore and complete quests.",
    "Navigate the world and find treasures.",
] * (config['batch_size'] // 2)
trajectories = harness.run_batch(prompts)
rewards = reward_manager.compute_batch_rewards(trajectories)
avg_reward = rewards.mean().item()
log_probs = engine.compute_log_probs(prompts, ["ok", "no"])
engine.close()
"""
    )
    assert names["rewards"].shape == (2,)
    assert names["log_probs"].shape == (2,)
    assert all(episode["outcome"].is_behaviour for episode in names["trajectories"])
    assert all(1 <= episode["num_turns"] <= 5 for episode in names["trajectories"])


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
