"""Every public name of the five seed documents is in turnsmith, or a table says what stands in its place."""

from __future__ import annotations

from functools import reduce
from pathlib import Path

import pytest

import turnsmith

PAGE = (Path(turnsmith.__file__).parents[2] / "docs" / "reference" / "specification.md").read_text()

CLASSES = """
ActionParser BaseEnvironment BaseInferenceEngine BatchInferenceManager CheckpointConfig ConfigStore
CustomEnvironmentDataset CustomGameEnvironment EnvironmentConfig EnvironmentRewardWrapper EnvironmentStepTool
FunctionCallingParser InferenceConfig JSONActionParser ModelConfig MultiTurnChatHarness MultiTurnInferenceEngine
MultiTurnManager RayPPOTrainer ReActActionParser RewardManager RolloutData SGLangInferenceEngine SimpleGameEnvironment
Tool ToolDefinition ToolRegistry TrainingConfig Trajectory VLLMInferenceEngine create_inference_engine create_trainer
"""
METHODS = {
    "BaseEnvironment": "reset step get_state_description get_prompt_prefix is_done",
    "BaseInferenceEngine": "generate compute_log_probs",
    "BatchInferenceManager": "generate_batch",
    "MultiTurnInferenceEngine": "start_conversation step format_conversation run_episode",
    "MultiTurnChatHarness": "run_episode run_batch",
    "MultiTurnManager": "step get_episode_summary",
    "RewardManager": "compute_trajectory_reward compute_batch_rewards",
    "RayPPOTrainer": "fit save_checkpoint load_checkpoint cleanup",
    "Tool": "execute",
    "ToolRegistry": "register execute_tool",
    "algo": "compute_gae_advantage_return compute_grpo_advantage compute_policy_loss compute_value_loss "
    "apply_kl_penalty KLController KLController.update",
}
SETTINGS = {
    "model": "model_name dtype device tensor_parallel_size local_path trust_remote_code",
    "inference": "backend max_tokens temperature top_p multi_turn max_turns",
    "training": "learning_rate gamma lam clip_ratio num_epochs batch_size adv_estimator use_kl_in_reward kl_coef",
    "checkpoint": "output_dir save_interval keep_last_n",
    "ray": "use_ray num_actors",
}
FIELDS = {"Trajectory": "states actions rewards dones"}
ELSEWHERE = """
CustomEnvDataset CustomRewardManager DataParallelPPOActor InferenceEngine PPOBatch PPOTrainer
PolicyValueModel RLHFDataset VERLRayPPOTrainer VLLMRolloutSPMD advantage_estimation batch_generation collate_fn
compute_gae_advantages compute_kl_penalty compute_log_prob compute_ppo_loss compute_reward compute_reward_async
core_algos estimate_advantages extract_action generate_sequences kl_penalty metrics_history multi_turn_engine reward_fn
rollout state_to_text train_step update update_policy ResourcePoolManager Role _create_verl_config
_default_resource_pool _default_role_mapping
"""
"""Names that have no object of the same name here; the page says what does their work."""


@pytest.mark.parametrize("name", CLASSES.split())
def test_a_public_name_is_there_and_documented(name: str) -> None:
    assert getattr(turnsmith, name).__doc__
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize(("owner", "names"), METHODS.items())
def test_a_method_is_there_and_documented(owner: str, names: str) -> None:
    for name in names.split():
        assert callable(reduce(getattr, name.split("."), getattr(turnsmith, owner)))
        assert name in PAGE, name


@pytest.mark.parametrize(("section", "names"), SETTINGS.items())
def test_a_setting_is_there_and_documented(section: str, names: str) -> None:
    for name in names.split():
        assert hasattr(getattr(turnsmith.ConfigStore(), section), name)
        assert f"`{name}`" in PAGE, name


@pytest.mark.parametrize(("owner", "names"), FIELDS.items())
def test_a_field_is_there_and_documented(owner: str, names: str) -> None:
    for name in names.split():
        assert hasattr(getattr(turnsmith, owner)(), name)
        assert f"`{name}`" in PAGE, name


@pytest.mark.parametrize("name", ELSEWHERE.split())
def test_a_name_that_something_else_stands_for_is_documented(name: str) -> None:
    assert name in PAGE


def test_nothing_is_open() -> None:
    assert "issue " not in PAGE.lower()


def test_the_page_is_up_to_date() -> None:
    from docs.hooks.specification import specification

    assert specification() == PAGE, "run: python -m docs.hooks.specification"
