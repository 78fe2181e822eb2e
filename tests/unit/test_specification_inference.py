"""The specification's snippets on engines, tools and whole episodes; the others: `test_specification_snippets.py`."""

from __future__ import annotations

from tests.unit.specification import MY_ENVIRONMENT, run

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
