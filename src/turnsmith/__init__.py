"""Train a language model in your own multi-turn environment, on verl and Ray.

Names are loaded on first use, so that `import turnsmith` stays fast and loads no torch, ray, verl or vllm.

Example:
    >>> import turnsmith
    >>> turnsmith.ConfigStore().training.adv_estimator
    'grpo'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnsmith import algo
    from turnsmith.config import (
        CheckpointConfig,
        ConfigStore,
        EnvironmentConfig,
        EvaluationConfig,
        FailuresConfig,
        InferenceConfig,
        LoggingConfig,
        ModelConfig,
        RayConfig,
        TrainingConfig,
    )
    from turnsmith.env.base import BaseEnvironment
    from turnsmith.env.examples import CustomGameEnvironment, SimpleGameEnvironment
    from turnsmith.env.result import StepResult
    from turnsmith.env.spec import EnvironmentSpec
    from turnsmith.errors import (
        ConfigError,
        EngineFailure,
        EnvironmentFailure,
        EnvironmentTimeout,
        MissingDependency,
        RecordError,
        SandboxFailure,
        ToolError,
        TrainingFailure,
        TurnsmithError,
        WorkerLost,
    )
    from turnsmith.inference.chat import Chat
    from turnsmith.inference.engine import Engine, Generation, Sampling
    from turnsmith.inference.engines.openai_engine import OpenAIEngine
    from turnsmith.inference.engines.scripted_engine import ScriptedEngine
    from turnsmith.inference.engines.sglang_engine import SGLangEngine
    from turnsmith.inference.sync.base import BaseInferenceEngine
    from turnsmith.inference.sync.batch import BatchInferenceManager
    from turnsmith.inference.sync.create import create_inference_engine
    from turnsmith.inference.sync.engines import (
        OpenAIInferenceEngine,
        SGLangInferenceEngine,
        TransformersInferenceEngine,
        VLLMInferenceEngine,
    )
    from turnsmith.models import resolve
    from turnsmith.records.episodes import read_episodes
    from turnsmith.records.run_folder import RunFolder
    from turnsmith.rollout.episode import EpisodeStart, run_episode
    from turnsmith.rollout.evaluation.evaluate import EvaluationPlan, evaluate, run_evaluation
    from turnsmith.rollout.evaluation.result import EvaluationResult
    from turnsmith.rollout.harness import MultiTurnChatHarness, MultiTurnManager
    from turnsmith.rollout.limits import Limits
    from turnsmith.rollout.multi_turn import MultiTurnInferenceEngine
    from turnsmith.rollout.rewards.environment_reward import EnvironmentRewardWrapper
    from turnsmith.rollout.rewards.judge import JudgeReward
    from turnsmith.rollout.rewards.reward_manager import RewardManager, RewardTerm
    from turnsmith.tools.definition import ToolCall, ToolDefinition, ToolResult
    from turnsmith.tools.mcp import add_mcp_server
    from turnsmith.tools.parsing import (
        ActionParser,
        FormatProblem,
        FunctionCallingParser,
        JSONActionParser,
        NativeParser,
        ParsedAction,
        PlainTextParser,
        ReActActionParser,
    )
    from turnsmith.tools.registry import ToolRegistry
    from turnsmith.tools.sandbox import PythonTool, SandboxLimits, run_python
    from turnsmith.tools.tool import EnvironmentStepTool, Tool, current_episode, tool, tools_of
    from turnsmith.trainer import RayPPOTrainer, create_trainer
    from turnsmith.trainer.dataset import CustomEnvironmentDataset
    from turnsmith.trajectory import Outcome, RolloutData, TokenBuffer, Trajectory, TurnRecord

__version__ = "0.1.0"

__all__ = [
    "ActionParser",
    "BaseEnvironment",
    "BaseInferenceEngine",
    "BatchInferenceManager",
    "Chat",
    "CheckpointConfig",
    "ConfigError",
    "ConfigStore",
    "CustomEnvironmentDataset",
    "CustomGameEnvironment",
    "Engine",
    "EngineFailure",
    "EnvironmentConfig",
    "EnvironmentFailure",
    "EnvironmentRewardWrapper",
    "EnvironmentSpec",
    "EnvironmentStepTool",
    "EnvironmentTimeout",
    "EpisodeStart",
    "EvaluationConfig",
    "EvaluationPlan",
    "EvaluationResult",
    "FailuresConfig",
    "FormatProblem",
    "FunctionCallingParser",
    "Generation",
    "InferenceConfig",
    "JSONActionParser",
    "JudgeReward",
    "Limits",
    "LoggingConfig",
    "MissingDependency",
    "ModelConfig",
    "MultiTurnChatHarness",
    "MultiTurnInferenceEngine",
    "MultiTurnManager",
    "NativeParser",
    "OpenAIEngine",
    "OpenAIInferenceEngine",
    "Outcome",
    "ParsedAction",
    "PlainTextParser",
    "PythonTool",
    "RayConfig",
    "RayPPOTrainer",
    "ReActActionParser",
    "RecordError",
    "RewardManager",
    "RewardTerm",
    "RolloutData",
    "RunFolder",
    "SGLangEngine",
    "SGLangInferenceEngine",
    "Sampling",
    "SandboxFailure",
    "SandboxLimits",
    "ScriptedEngine",
    "SimpleGameEnvironment",
    "StepResult",
    "TokenBuffer",
    "Tool",
    "ToolCall",
    "ToolDefinition",
    "ToolError",
    "ToolRegistry",
    "ToolResult",
    "TrainingConfig",
    "TrainingFailure",
    "Trajectory",
    "TransformersInferenceEngine",
    "TurnRecord",
    "TurnsmithError",
    "VLLMInferenceEngine",
    "WorkerLost",
    "__version__",
    "add_mcp_server",
    "algo",
    "create_inference_engine",
    "create_trainer",
    "current_episode",
    "evaluate",
    "read_episodes",
    "resolve",
    "run_episode",
    "run_evaluation",
    "run_python",
    "tool",
    "tools_of",
]

# Where each public name lives; a test holds this table, `__all__` and the imports above together.
_HOME = {
    "turnsmith.config": (
        "CheckpointConfig",
        "ConfigStore",
        "EnvironmentConfig",
        "EvaluationConfig",
        "FailuresConfig",
        "InferenceConfig",
        "LoggingConfig",
        "ModelConfig",
        "RayConfig",
        "TrainingConfig",
    ),
    "turnsmith.env.base": ("BaseEnvironment",),
    "turnsmith.env.examples": ("CustomGameEnvironment", "SimpleGameEnvironment"),
    "turnsmith.env.result": ("StepResult",),
    "turnsmith.env.spec": ("EnvironmentSpec",),
    "turnsmith.errors": (
        "ConfigError",
        "EngineFailure",
        "EnvironmentFailure",
        "EnvironmentTimeout",
        "MissingDependency",
        "RecordError",
        "SandboxFailure",
        "ToolError",
        "TrainingFailure",
        "TurnsmithError",
        "WorkerLost",
    ),
    "turnsmith.inference.sync.base": ("BaseInferenceEngine",),
    "turnsmith.inference.sync.batch": ("BatchInferenceManager",),
    "turnsmith.inference.chat": ("Chat",),
    "turnsmith.inference.engine": ("Engine", "Generation", "Sampling"),
    "turnsmith.inference.sync.engines": (
        "OpenAIInferenceEngine",
        "SGLangInferenceEngine",
        "TransformersInferenceEngine",
        "VLLMInferenceEngine",
    ),
    "turnsmith.inference.sync.create": ("create_inference_engine",),
    "turnsmith.inference.engines.openai_engine": ("OpenAIEngine",),
    "turnsmith.inference.engines.scripted_engine": ("ScriptedEngine",),
    "turnsmith.inference.engines.sglang_engine": ("SGLangEngine",),
    "turnsmith.models": ("resolve",),
    "turnsmith.records.episodes": ("read_episodes",),
    "turnsmith.records.run_folder": ("RunFolder",),
    "turnsmith.rollout.episode": ("EpisodeStart", "run_episode"),
    "turnsmith.rollout.evaluation.evaluate": ("EvaluationPlan", "evaluate", "run_evaluation"),
    "turnsmith.rollout.evaluation.result": ("EvaluationResult",),
    "turnsmith.rollout.harness": ("MultiTurnChatHarness", "MultiTurnManager"),
    "turnsmith.rollout.rewards.judge": ("JudgeReward",),
    "turnsmith.rollout.limits": ("Limits",),
    "turnsmith.rollout.multi_turn": ("MultiTurnInferenceEngine",),
    "turnsmith.rollout.rewards.reward_manager": ("RewardManager", "RewardTerm"),
    "turnsmith.rollout.rewards.environment_reward": ("EnvironmentRewardWrapper",),
    "turnsmith.tools.definition": ("ToolCall", "ToolDefinition", "ToolResult"),
    "turnsmith.tools.mcp": ("add_mcp_server",),
    "turnsmith.tools.parsing": (
        "ActionParser",
        "FormatProblem",
        "FunctionCallingParser",
        "JSONActionParser",
        "NativeParser",
        "ParsedAction",
        "PlainTextParser",
        "ReActActionParser",
    ),
    "turnsmith.tools.registry": ("ToolRegistry",),
    "turnsmith.tools.sandbox": ("PythonTool", "SandboxLimits", "run_python"),
    "turnsmith.tools.tool": ("EnvironmentStepTool", "Tool", "current_episode", "tool", "tools_of"),
    "turnsmith.trainer": ("RayPPOTrainer", "create_trainer"),
    "turnsmith.trainer.dataset": ("CustomEnvironmentDataset",),
    "turnsmith.trajectory": ("Outcome", "RolloutData", "TokenBuffer", "Trajectory", "TurnRecord"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a public name the first time it is asked for (PEP 562)."""
    if name == "algo":
        return import_module("turnsmith.algo")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'turnsmith' has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
