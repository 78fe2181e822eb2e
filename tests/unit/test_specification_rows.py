"""What the specification's readers stumbled over, by row of the check of the five documents."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from turnsmith import (
    BaseEnvironment,
    BaseInferenceEngine,
    Chat,
    ConfigError,
    CustomEnvironmentDataset,
    EnvironmentConfig,
    EnvironmentSpec,
    MultiTurnChatHarness,
    MultiTurnManager,
    ReActActionParser,
    RewardManager,
    ScriptedEngine,
    SimpleGameEnvironment,
    Tool,
    ToolRegistry,
    create_inference_engine,
)
from turnsmith.inference.sync.engines import load_tokenizer
from turnsmith.rollout.rewards.reward_function import RewardFailure


class MyTool(Tool):
    def execute(self, param: str) -> str:
        """Repeat param."""
        return param


class Crashes(BaseEnvironment):
    def reset(self) -> str:
        return "Go."

    def step(self, action: str) -> Any:
        raise KeyError("boom")


class Level(BaseEnvironment):
    def __init__(self, config: Any, words: list[str] | None = None) -> None:
        super().__init__(config)
        self.level = self.config.get("level", 1)
        self.words = words or ["a"]

    def reset(self) -> str:
        return str(self.level)

    def step(self, action: str) -> Any:
        return "", 0.0, True, {}


@pytest.fixture(scope="module")
def engine(tiny_folder: str) -> BaseInferenceEngine:
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    return BaseInferenceEngine(ScriptedEngine(["a"], Chat(tokenizer)), tokenizer)


def test_row_7_a_crashed_episode_says_why_and_has_no_reward(engine: BaseInferenceEngine) -> None:
    episode = MultiTurnChatHarness(engine, Crashes).run_episode("Play.")
    assert "Crashes.step raised KeyError: 'boom'" in episode["error"]
    with pytest.raises(RewardFailure, match=r"it failed: Crashes.step raised KeyError: 'boom'"):
        RewardManager(Crashes()).compute_trajectory_reward(episode)


def test_row_8_the_config_is_a_mapping() -> None:
    config = SimpleGameEnvironment({"max_steps": 3, "board": 4}).config
    assert "board" in config
    assert "colour" not in config
    assert (dict(config), len(config), list(config.items())[1]) == ({"max_steps": 3, "board": 4}, 2, ("board", 4))
    assert config == {"max_steps": 3, "board": 4}
    assert EnvironmentConfig(**config) == config
    config["size"] = 3
    assert (config.size, config["size"]) == (3, 3)
    with pytest.raises(KeyError, match="no setting called 'colour'"):
        _ = config["colour"]
    assert config.get("items", []) == [], "a method of the mapping is no setting"
    assert EnvironmentConfig(items=["lamp"]).items == ["lamp"]


def test_row_12_sglang_is_told_what_to_start_and_what_to_write() -> None:
    with pytest.raises(ConfigError) as told:
        create_inference_engine("meta-llama/Llama-2-7b-hf", backend="sglang")
    for part in ("sglang.launch_server --model-path meta-llama/Llama-2-7b-hf", "create_inference_engine('http://"):
        assert part in str(told.value)


def test_row_14_a_turn_without_a_call_has_no_result() -> None:
    environment = SimpleGameEnvironment()
    turn = MultiTurnManager(ToolRegistry([MyTool()]), ReActActionParser(), environment).step(
        "model output", environment.reset()
    )
    assert turn.tool_call.result is None
    assert turn.tool_calls == []


def test_rows_15_and_16_settings_of_another_backend_and_other_names(tiny_folder: str) -> None:
    settings = {"dtype": "bfloat16", "tensor_parallel_size": 1, "max_model_len": 2048}
    with pytest.warns(UserWarning, match=r"does not use the setting tensor_parallel_size, which is for vllm"):
        engine = create_inference_engine("tiny", backend="transformers", config=settings)
    with engine:
        responses = engine.generate(["Hello", "Hi"], max_new_tokens=4, temperature=0.7)
    assert [responses[0], responses[1]] == list(responses) == responses.sequences
    assert responses.tokens.shape[1] <= 4
    with pytest.raises(ConfigError, match=r"no setting dtyp. Did you mean dtype"):
        create_inference_engine("tiny", backend="transformers", config={"dtyp": "float32"})


def test_row_17_react_with_input_alone() -> None:
    for label in ("Input", "Action Input"):
        parsed = ReActActionParser().parse(f'Thought: t\nAction: my_tool\n{label}: {{"param": "x"}}')
        assert [(call.name, call.arguments) for call in parsed.calls] == [("my_tool", {"param": "x"})]
    sentence = ReActActionParser().parse("Action: my_tool\nThe Input: of it is unknown.")
    assert [call.arguments for call in sentence.calls] == [{}]


def test_row_18_what_a_fresh_environment_will_not_have_is_named() -> None:
    with pytest.warns(UserWarning, match=r"words=\['b'\] of yours is lost: put it into the config"):
        EnvironmentSpec.of(Level({}, words=["b"]))
    later = Level({"level": 7})
    later.level = 9
    with pytest.warns(UserWarning, match="level=9 of yours is lost"):
        EnvironmentSpec.of(later)
    played = SimpleGameEnvironment()
    played.reset()
    played.step("move north")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kept in (Level({"level": 7}), Level(None), played):
            EnvironmentSpec.of(kept)


FACES = {
    "env": "ConfigStore BaseEnvironment EnvironmentConfig SimpleGameEnvironment Trajectory RolloutData",
    "algo": "compute_gae_advantage_return compute_grpo_advantage compute_policy_loss compute_value_loss KLController",
    "inference": "BaseInferenceEngine VLLMInferenceEngine SGLangInferenceEngine MultiTurnInferenceEngine "
    "BatchInferenceManager create_inference_engine",
    "tools": "ToolDefinition Tool ToolRegistry ActionParser JSONActionParser ReActActionParser FunctionCallingParser "
    "MultiTurnManager EnvironmentStepTool",
    "trainer": "RayPPOTrainer create_trainer CustomEnvironmentDataset EnvironmentRewardWrapper",
}
"""What the manifest and the readme say is in each file."""


@pytest.mark.parametrize(("package", "names"), FACES.items())
def test_row_20_each_package_has_what_its_document_says(package: str, names: str) -> None:
    import turnsmith

    face = importlib.import_module(f"turnsmith.{package}")
    for name in names.split():
        assert getattr(face, name) is getattr(turnsmith, name, getattr(face, name))
    with pytest.raises(AttributeError, match=f"turnsmith.{package}' has no attribute 'Nothing'"):
        _ = face.Nothing


def test_row_20_the_faces_are_light() -> None:
    code = "import sys, turnsmith.env, turnsmith.tools, turnsmith.inference; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.parametrize("name", ["InferenceEngine", "PPOTrainer", "PolicyValueModel", "PPOBatch", "RLHFDataset"])
def test_a_name_whose_work_something_else_does_says_what_to_write(name: str) -> None:
    with pytest.raises(ImportError, match=rf"turnsmith has no {name}. Write "):
        exec(f"from turnsmith import {name}")  # noqa: S102


def test_row_21_a_torch_loader_reads_our_dataset(tiny_folder: str) -> None:
    from torch.utils.data import DataLoader

    dataset: Any = CustomEnvironmentDataset(SimpleGameEnvironment(), AutoTokenizer.from_pretrained(tiny_folder))
    for loader in (DataLoader(dataset), DataLoader(dataset, batch_size=2)):
        batch = next(iter(loader))
        assert "Quest: bring the sword" in batch["prompt"][0]
        assert len(batch["input_ids"]) == len(batch["attention_mask"])


def test_row_22_padding_is_the_end_token_where_there_is_none(tiny_folder: str, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).pad_token is None
    loaded, _ = load_tokenizer(str(tmp_path), trust_remote_code=False)
    assert loaded.pad_token == loaded.eos_token is not None


def test_row_24_the_harness_samples_as_the_architecture_says(engine: BaseInferenceEngine) -> None:
    sampling = MultiTurnChatHarness(engine, SimpleGameEnvironment).rollout.sampling
    assert (sampling.temperature, sampling.max_tokens) == (0.7, 128)
