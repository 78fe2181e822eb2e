"""The blocks of the specification's five documents, executed from their texts. What is replaced in them is in the table
of `tests/specification.py`; those that train are in `tests/e2e/test_specification.py`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from tests import specification
from tests.specification import (
    BLOCKS,
    DOCUMENTS,
    RUNNABLE,
    Script,
    executed_by,
    executes,
    needs_documents,
    texts,
    without_template,
)
from transformers import AutoTokenizer

import turnsmith
from turnsmith import (
    BaseEnvironment,
    BaseInferenceEngine,
    Chat,
    ConfigError,
    ConfigStore,
    EnvironmentConfig,
    FunctionCallingParser,
    MultiTurnChatHarness,
    MultiTurnInferenceEngine,
    RayPPOTrainer,
    RewardManager,
    ScriptedEngine,
    SimpleGameEnvironment,
    Tool,
    Trajectory,
    algo,
    create_inference_engine,
)
from turnsmith.config_sources import from_dict, to_dict

pytestmark = needs_documents
QUEST = ["move north", "pick up sword", "complete quest"]


@pytest.fixture
def script(request: pytest.FixtureRequest) -> Iterator[Script]:
    """A namespace to execute blocks in; afterwards, those that the test is marked with have been."""
    typed = Script()
    yield typed
    assert set(request.function.blocks) <= set(typed.executed)


@pytest.fixture(scope="module")
def untemplated(tiny_folder: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny model without a chat template, as Llama 2's base model is."""
    return without_template(tiny_folder, tmp_path_factory.mktemp("models") / "untemplated")


class MyTool(Tool):
    def execute(self, param: str) -> str:
        """Repeat param."""
        return param


def scripted(folder: str, *turns: str) -> BaseInferenceEngine:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return BaseInferenceEngine(ScriptedEngine(list(turns), Chat(tokenizer)), tokenizer)


# ---- the documents and the table


def test_the_table_has_every_block_and_every_block_a_test() -> None:
    from tests.e2e import test_specification as trained

    assert list(texts()) == [block.name for block in BLOCKS]
    for block in BLOCKS:
        lines = [line for line in texts()[block.name].splitlines() if line.strip() and not line.startswith("#")]
        assert lines[0] == block.begins, f"{block.name} has changed"
    executed = executed_by(sys.modules[__name__]) + executed_by(trained)
    assert sorted(executed) == sorted(block.name for block in RUNNABLE)
    assert (len(RUNNABLE), sum(block.kind == "as typed" for block in RUNNABLE)) == (41, 36)


def test_a_missing_document_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TURNSMITH_SPECIFICATION", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=f"{DOCUMENTS[0]}.md"):
        specification.texts.__wrapped__()


# ---- readme.md: environment, configuration, reward


@executes("readme-01")
def test_define_your_environment(script: Script, tiny_folder: str) -> None:
    made = script.run("readme-01")["MyEnvironment"](EnvironmentConfig())
    assert made.reset() == made.last_observation or made.reset() == "Initial state description"
    assert made.step("x") == ("New state", 1.0, False, {})
    assert made.get_state_description() == "Current state description"
    episode = MultiTurnChatHarness(scripted(tiny_folder, "go", "on"), script["MyEnvironment"], 2).run_episode("Play.")
    assert (episode["rewards"], episode["dones"]) == ([1.0, 1.0], [False, False])


@executes("readme-02", "readme-03", "readme-06")
def test_configure_training_and_define_a_reward(script: Script) -> None:
    config = script.run("readme-02")["config"]
    assert from_dict(to_dict(config)) == config, "every setting is a known one"
    assert (config.training.batch_size, config.checkpoint.save_interval, config.inference.temperature) == (32, 5, 0.7)
    assert script.run("readme-03")["compute_reward"](Trajectory(rewards=[1.0, 0.5]), None) == 1.5
    script.model = specification.LLAMA
    config = script.run("readme-06", ConfigStore=ConfigStore)["config"]
    other = ConfigStore()
    other.model.model_name, other.training.learning_rate = specification.LLAMA, 1e-5
    assert config == other, "all others have their defaults"


@executes("readme-07")
def test_the_base_class(script: Script, tiny_folder: str) -> None:
    my_env = script.run("readme-07", BaseEnvironment=BaseEnvironment)["MyEnv"]
    assert my_env({}).get_prompt_prefix() == "You are a helpful assistant."
    assert [getattr(my_env({}), name)() for name in ("reset", "get_state_description")] == [None, None]

    class Filled(my_env):
        def reset(self) -> str:
            return "Go."

        def step(self, action: str) -> Any:
            return "", 0.0, True, {}

    conversation = MultiTurnInferenceEngine(scripted(tiny_folder, "on"), max_turns=1)
    conversation.run_episode(Filled({}), "Play.")
    assert conversation.trajectory is not None
    assert conversation.trajectory.messages[0] == {"role": "system", "content": "You are a helpful assistant."}
    with pytest.raises(
        turnsmith.EnvironmentFailure, match=r"MyEnv.reset returned an observation of type NoneType; it must"
    ):
        turnsmith.EnvironmentRewardWrapper(my_env).compute_batch_rewards(["x"])


@executes("readme-08")
def test_the_trajectory(script: Script) -> None:
    trajectory = script.run("readme-08", Trajectory=Trajectory)["trajectory"]
    assert (trajectory.states[:2], trajectory.actions[1]) == (["state1", "state2"], "action2")
    assert (trajectory.dones[0], trajectory.dones[-1]) == (False, True)
    trajectory.rewards.remove(...)
    assert trajectory.total_reward == 1.5


# ---- readme.md: algo, against the formulas of architecture.md


@executes("readme-09", "readme-10", "readme-11", "architecture-06")
def test_the_algorithms(script: Script) -> None:
    torch.manual_seed(0)
    shape = (4, 6)
    rewards, values, old_values, returns = (torch.randn(shape) for _ in range(4))
    old, ref = -torch.rand(shape), -torch.rand(shape)
    new = (old + 0.5 * torch.randn(shape)).requires_grad_()
    mask = torch.ones(shape)
    theirs = script.run("architecture-06")["PPOTrainer"](torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))

    groups = ["a", "a", "b", "b"]
    given = {"rewards": rewards, "values": values, "mask": mask, "group_indices": groups}
    gae, gae_returns = algo.compute_gae_advantage_return(rewards, values, mask, gamma=0.99, lam=0.95)
    their_advantages, their_returns = theirs.compute_gae_advantages(rewards, values, torch.zeros(shape))
    torch.testing.assert_close(gae_returns, their_returns)
    torch.testing.assert_close(gae, their_advantages, atol=1e-5, rtol=1e-4)
    script.run("readme-09", **given)
    sums = rewards.sum(1).view(2, 2)
    scores = ((sums - sums.mean(1, keepdim=True)) / (sums.std(1, keepdim=True) + 1e-6)).view(4, 1)
    torch.testing.assert_close(script["advantages"], scores.expand(shape), atol=1e-5, rtol=1e-4)

    script.names.update(old_lp=old, new_lp=new, returns=returns, old_values=old_values, advantages=gae)
    script.run("readme-10")
    expected, _ = theirs.compute_ppo_loss(old, new, gae, mask)
    torch.testing.assert_close(script["policy_loss"], expected)
    script["policy_loss"].backward()
    assert new.grad is not None
    assert new.grad.abs().sum() > 0
    unclipped, _ = algo.compute_value_loss(values, returns, values, mask, cliprange_value=0.2)
    torch.testing.assert_close(2 * unclipped, theirs.compute_value_loss(values, returns, mask)[0])
    clipped = old_values + (values - old_values).clamp(-0.2, 0.2)
    expected = torch.maximum((values - returns) ** 2, (clipped - returns) ** 2).mean() / 2
    torch.testing.assert_close(script["value_loss"], expected)

    script.run("readme-11", lp=old, ref_lp=ref)
    penalty = rewards - script["penalized_rewards"]
    torch.testing.assert_close(penalty, 0.01 * (old - ref), atol=1e-6, rtol=1e-4)
    assert 0.01 < script["kl_ctrl"].value < 0.0125

    model = OutputsOfAModel()
    trainer = script["PPOTrainer"](model, model, learning_rate=0.1)
    batch = {"input_ids": torch.zeros(4, 6), "attention_mask": mask, "rewards": rewards, "dones": torch.zeros(shape)}
    metrics = trainer.update({**batch, "old_log_probs": torch.zeros(shape), "response_mask": mask}, num_epochs=2)
    assert {"epoch_0_policy_loss", "epoch_1_value_loss", "ratio_mean"} <= metrics.keys()
    assert all(math.isfinite(value) for value in metrics.values())
    assert model.weight.item() != 0.5


class OutputsOfAModel(torch.nn.Module):
    """Has the outputs that the document's PPOTrainer reads."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(0.5))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        columns = 256 if attention_mask.shape[1] == 512 else attention_mask.shape[1]
        output = self.weight * torch.ones(len(input_ids), columns)
        return {"log_probs": output, "values": output}


# ---- readme.md: engines


@pytest.mark.parametrize("has_template", [True, False])
@executes("readme-12", "readme-14", "readme-15")
def test_the_engines(script: Script, tiny_folder: str, untemplated: str, has_template: bool) -> None:
    script.model = tiny_folder if has_template else untemplated
    with pytest.warns(UserWarning, match="does not use the setting (tensor_parallel_size|max_model_len)") as told:
        output = script.run("readme-12")["output"]
    assert len([one for one in told if "does not use the setting" in str(one.message)]) == 2
    assert [type(text) for text in output.sequences] == [str]
    assert isinstance(output.tokens, np.ndarray)
    assert output.tokens.shape[0] == 1
    assert 1 <= output.tokens.shape[1] <= 256

    script.run("readme-01")
    script.run("readme-14", my_env=script["MyEnvironment"](EnvironmentConfig()))
    assert isinstance(script["response"], str)
    assert [type(turn) for turn in script["responses"]] == [str] * 2
    episode = script["multi_turn"].trajectory
    assert (episode.rewards, episode.outcome.value) == ([1.0] * 2, "turn_limit")
    assert "You are a helpful assistant." in str(episode.messages[0])
    assert "Start playing the game." in str(episode.messages)

    output = script.run("readme-15", large_prompt_list=[f"prompt {number}" for number in range(3)])["output"]
    assert (len(output.sequences), output.tokens.shape[0]) == (3, 3)
    script["engine"].close()


@executes("readme-13")
def test_sglang_is_refused_in_a_sentence(script: Script) -> None:
    with pytest.raises(
        ConfigError, match=r"write create_inference_engine\('http://127.0.0.1:30000', backend='sglang'\)"
    ):
        script.run("readme-13", create_inference_engine=create_inference_engine)


# ---- manifest.md


@executes("manifest-04")
def test_with_tool_calling(script: Script, tiny_folder: str) -> None:
    call = '<tool_call>{"name": "my_tool", "arguments": {"param": "again"}}</tool_call>'
    engine = scripted(tiny_folder, call, "Enough.")
    env = script.run("readme-01")["MyEnvironment"](EnvironmentConfig(max_steps=1))
    given = {
        name: getattr(turnsmith, name) for name in ("ToolRegistry", "MultiTurnManager", "MultiTurnInferenceEngine")
    }
    script.run(
        "manifest-04", MyTool=MyTool, parser=FunctionCallingParser(), env=env, prompt="Go.", engine=engine, **given
    )
    assert script["summary"] == [call, "Enough."]
    assert script["manager"].get_episode_summary() == {
        "num_turns": 2,
        "total_reward": 1.0,
        "done": True,
        "format_problems": 0,
        "tools": {"my_tool": {"calls": 1, "failures": 0}},
    }
    assert script["manager"].turns[0].tool_call.result.text == "again"


@executes("manifest-05", "manifest-06", "manifest-07", "readme-16")
def test_settings_and_a_trainer_that_takes_them(script: Script) -> None:
    script.names["config"] = ConfigStore()
    config = script.run("manifest-05").run("manifest-06").run("manifest-07")["config"]
    assert (config.training.adv_estimator, config.inference.backend) == ("grpo", "vllm")
    assert (config.ray.use_ray, config.ray.num_actors) == (True, 4)
    config.inference.backend = "transformers"
    env = script.run("readme-01")["MyEnvironment"](config.environment)
    script.run("readme-16", env=env, reward_function=len, optional_dataset=[{"a": 1}, {"a": 2}])
    trainer = script["trainer"]
    assert isinstance(trainer, RayPPOTrainer)
    assert (trainer.parts.reward_fn, len(trainer.parts.dataset), trainer.config.ray.num_actors) == (len, 2, 4)
    assert trainer.metrics_history == []


@executes("manifest-08")
def test_before_training(script: Script, tiny_folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    script.model = tiny_folder
    names = ("ToolRegistry", "MultiTurnManager", "create_inference_engine", "FunctionCallingParser")
    script.names.update({name: getattr(turnsmith, name) for name in names})
    my_env = script.run("readme-01")["MyEnvironment"]
    script.run("manifest-08", MyEnv=my_env, MyTool=MyTool, config=ConfigStore(), parser=FunctionCallingParser())
    assert (script["obs"], script["reward"], script["done"]) == ("New state", 1.0, False)
    assert (script["success"], script["result"]) == (True, "value")
    assert len(script["output"].sequences) == 1
    assert capsys.readouterr().out == "None\n"
    assert script["manager"].get_episode_summary()["total_reward"] == 1.0
    script["engine"].close()


# ---- architecture.md


class InOrder:
    """Says one text after another, as the document's harness asks its engine."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = iter(texts)

    def generate(self, prompts: list[str], max_new_tokens: int, temperature: float) -> list[str]:
        return [next(self.texts)]


@executes("architecture-02", "architecture-04", "architecture-05")
def test_environment_harness_and_rewards(script: Script, tiny_folder: str) -> None:
    theirs = script.run("architecture-02")["CustomGameEnvironment"]
    game = theirs({"max_steps": 5})
    assert "Steps remaining: 5" in game.reset()
    assert [game.step(action)[1:3] for action in QUEST] == [(0.1, False), (0.5, False), (10.0, True)]
    assert (game.is_done(), game.score, game.inventory) == (True, 10, ["sword"])
    game = theirs({"max_steps": 2})
    game.reset()
    assert [game.step("dance")[1:] for _ in range(2)] == [
        (-0.1, False, {"invalid_action": True}),
        (-0.1, True, {"invalid_action": True}),
    ]

    harness = script.run("architecture-04")["MultiTurnChatHarness"]
    manager = script.run("architecture-05")["RewardManager"]
    for turns in (QUEST, ["dance", "move east", "dance", "dance", "dance"]):
        played = harness(InOrder(turns), theirs({"max_steps": 5})).run_episode("Explore.")
        ours = MultiTurnChatHarness(scripted(tiny_folder, *turns), theirs({"max_steps": 5})).run_episode("Explore.")
        for name in ("actions", "observations", "rewards", "dones", "total_reward", "num_turns", "prompts"):
            assert ours[name] == played[name], name
        assert (ours["infos"], ours["states"][0]) == (played["infos"], played["states"][0])
        expected, paid = manager(theirs({"max_steps": 5})), RewardManager(theirs({"max_steps": 5}))
        assert paid.compute_trajectory_reward(ours) == pytest.approx(expected.compute_trajectory_reward(played))
        torch.testing.assert_close(
            paid.compute_batch_rewards([ours, ours]), expected.compute_batch_rewards([played, played])
        )
    with_batch = manager(game)(data_proto(responses=torch.zeros(2, 3)))
    assert with_batch.tolist() == [1.0, 1.0]
    text = harness(create_inference_engine(tiny_folder), theirs({"max_steps": 1})).run_batch(["Go.", "Go."])
    assert [episode["num_turns"] for episode in text] == [1, 1], "its harness calls generate as ours takes it"


@executes("architecture-03")
def test_the_inference_class(script: Script, tiny_folder: str) -> None:
    theirs = script.run("architecture-03")["InferenceEngine"](tiny_folder, device="cpu")
    prompts = ["Hello, how are you?", "And you?"]
    assert [type(text) for text in theirs.generate(prompts, max_new_tokens=4)] == [str, str]
    expected = theirs.compute_log_probs(["Hello, "], ["world"]).float()
    with create_inference_engine(tiny_folder) as ours:
        assert len(list(ours.generate(prompts, max_new_tokens=4, temperature=0.7, top_p=0.9))) == 2
        torch.testing.assert_close(ours.compute_log_probs(["Hello, "], ["world"]), expected, atol=0.2, rtol=0.05)


@pytest.mark.parametrize("has_template", [True, False])
@executes("architecture-07")
def test_the_main_loop(
    script: Script,
    tiny_folder: str,
    untemplated: str,
    has_template: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType("ppo_training")
    vars(module).update(script.run("architecture-06").names)
    monkeypatch.setitem(sys.modules, "ppo_training", module)
    script.model = tiny_folder if has_template else untemplated
    script.run("architecture-07", with_outputs=OutputsOfAModel())
    said = capsys.readouterr().out
    assert "=== Epoch 1 ===" in said
    assert "epoch_3_policy_loss" in said
    assert -5 <= float(said.partition("Average reward: ")[2]) <= 16


# ---- extraction-guide.md and trainer-notes.md


class YourEnvironment(SimpleGameEnvironment):
    """The reader's own, with the methods that the guide calls."""

    def get_state(self, index: int) -> str:
        return f"room {index}"

    def get_action(self, index: int) -> str:
        return f"open {index}"

    def compute_reward(self, state: Any, action: str) -> float:
        return float(state) + len(action)


def data_proto(**tensors: Any) -> Any:
    from verl.protocol import DataProto

    return DataProto.from_single_dict(tensors)


def guide(script: Script, tiny_folder: str, monkeypatch: pytest.MonkeyPatch) -> Script:
    """The first blocks of the guide, and what it leaves to the reader."""
    readme = ModuleType("readme")
    vars(readme).update(Script().run("readme-03").names)
    monkeypatch.setitem(sys.modules, "readme", readme)
    config = ConfigStore()
    config.model.model_name = "tiny"
    script.names.update(config=config, YourEnvironment=YourEnvironment, env=YourEnvironment())
    script.names["tokenizer"] = AutoTokenizer.from_pretrained(tiny_folder)
    return script.run("extraction-guide-06").run("extraction-guide-07")


@executes("extraction-guide-06", "extraction-guide-07", "extraction-guide-10", "extraction-guide-11")
def test_the_guides_dataset_and_reward(
    script: Script, tiny_folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    guide(script, tiny_folder, monkeypatch)
    dataset = script["CustomEnvDataset"](YourEnvironment(), tokenizer=script["tokenizer"])
    dataset.tokenizer_kwargs, dataset.state_to_text = {}, lambda state: f"You are in {state}."
    row = dataset[3]
    assert (row["prompt"], row["state"], row["expected_action"]) == ("You are in room 3.", "room 3", "open 3")
    assert row["input_ids"] == script["tokenizer"]("You are in room 3.")["input_ids"]
    with pytest.raises(ConfigError, match=r"CustomEnvDataset.__getitem__ is not read by training: override start"):
        RayPPOTrainer(script["config"], YourEnvironment, dataset=dataset)

    reward = script["CustomRewardManager"](YourEnvironment())
    reward.extract_action = lambda response: "go" * int(response.sum())
    paid = reward(data_proto(responses=torch.tensor([[1, 1], [0, 1]]), state=torch.tensor([5.0, 7.0])))
    assert paid.tolist() == [9.0, 9.0]

    script.run("extraction-guide-10").run("extraction-guide-11")
    assert capsys.readouterr().out == (
        "Dataset size: 1000000000\nSample: {'index': 0, 'seed': 0}\nReward manager working\n"
    )


@executes("extraction-guide-08", "extraction-guide-12", "trainer-notes-06", "trainer-notes-09")
def test_what_is_written_against_verls_own_parts_says_what_to_write(
    script: Script, tiny_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide(script, tiny_folder, monkeypatch)
    script.names["CustomEnvDataset"] = turnsmith.CustomEnvironmentDataset
    what_to_write = r"takes verl's DataProto, but a reward function gets one episode: write "
    with pytest.raises(ConfigError, match=what_to_write):
        script.run("extraction-guide-08")

    def run_main() -> None:
        Script(names=dict(script.names)).run("extraction-guide-08")

    with pytest.raises(ConfigError, match=what_to_write):
        script.run("extraction-guide-12", run_main=run_main)
    script.run("trainer-notes-06", DataProto=type(data_proto(a=torch.zeros(1))), torch=torch)
    with pytest.raises(ConfigError, match=what_to_write):
        RayPPOTrainer(script["config"], SimpleGameEnvironment, reward_fn=script["reward_fn"])
    with pytest.raises(ConfigError, match=r"multi_turn_engine is not taken: .* Leave it out"):
        script.run("trainer-notes-09", CustomRayPPOTrainer=turnsmith.CustomRayPPOTrainer, multi_turn=object())
