"""Train a language model in your own multi-turn environment, on verl and Ray.

Names are loaded on first use, so that `import turnwise` stays fast and loads no torch, ray, verl or vllm.

Example:
    >>> import turnwise
    >>> turnwise.ConfigStore().training.adv_estimator
    'grpo'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnwise import algo
    from turnwise.config import (
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
    from turnwise.env.base import BaseEnvironment
    from turnwise.env.examples import CustomGameEnvironment, SimpleGameEnvironment
    from turnwise.env.result import StepResult
    from turnwise.env.spec import EnvironmentSpec
    from turnwise.errors import (
        ConfigError,
        EngineFailure,
        EnvironmentFailure,
        EnvironmentTimeout,
        MissingDependency,
        RecordError,
        SandboxFailure,
        ToolError,
        TrainingFailure,
        TurnwiseError,
        WorkerLost,
    )
    from turnwise.inference.base import BaseInferenceEngine
    from turnwise.inference.batch import BatchInferenceManager
    from turnwise.inference.chat import Chat
    from turnwise.inference.engine import Engine, Generation, Sampling
    from turnwise.inference.faces import (
        OpenAIInferenceEngine,
        SGLangInferenceEngine,
        SGLangServerInferenceEngine,
        TransformersInferenceEngine,
        VLLMInferenceEngine,
    )
    from turnwise.inference.factory import create_inference_engine
    from turnwise.inference.openai_engine import OpenAIEngine
    from turnwise.inference.scripted import ScriptedEngine
    from turnwise.inference.sglang_engine import SGLangEngine
    from turnwise.inference.sglang_server import SGLangServerEngine
    from turnwise.models import resolve
    from turnwise.records.episodes import read_episodes
    from turnwise.records.run_folder import RunFolder
    from turnwise.rollout.episode import EpisodeStart, run_episode
    from turnwise.rollout.evaluation import EvaluationPlan, evaluate, run_evaluation
    from turnwise.rollout.evaluation_result import EvaluationResult
    from turnwise.rollout.harness import MultiTurnChatHarness, MultiTurnManager
    from turnwise.rollout.judge import JudgeReward
    from turnwise.rollout.limits import Limits
    from turnwise.rollout.multi_turn import MultiTurnInferenceEngine
    from turnwise.rollout.reward_manager import RewardManager, RewardTerm
    from turnwise.rollout.reward_wrapper import EnvironmentRewardWrapper
    from turnwise.tools.definition import ToolCall, ToolDefinition, ToolResult
    from turnwise.tools.mcp import add_mcp_server
    from turnwise.tools.parsing import (
        ActionParser,
        FormatProblem,
        FunctionCallingParser,
        JSONActionParser,
        NativeParser,
        ParsedAction,
        PlainTextParser,
        ReActActionParser,
    )
    from turnwise.tools.registry import ToolRegistry
    from turnwise.tools.sandbox import PythonTool, SandboxLimits, run_python
    from turnwise.tools.tool import EnvironmentStepTool, Tool, current_episode, tool, tools_of
    from turnwise.trainer import RayPPOTrainer, create_trainer
    from turnwise.trainer.dataset import CustomEnvironmentDataset
    from turnwise.trajectory import Outcome, RolloutData, TokenBuffer, Trajectory, TurnRecord

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
    "SGLangServerEngine",
    "SGLangServerInferenceEngine",
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
    "TurnwiseError",
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
    "turnwise.config": (
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
    "turnwise.env.base": ("BaseEnvironment",),
    "turnwise.env.examples": ("CustomGameEnvironment", "SimpleGameEnvironment"),
    "turnwise.env.result": ("StepResult",),
    "turnwise.env.spec": ("EnvironmentSpec",),
    "turnwise.errors": (
        "ConfigError",
        "EngineFailure",
        "EnvironmentFailure",
        "EnvironmentTimeout",
        "MissingDependency",
        "RecordError",
        "SandboxFailure",
        "ToolError",
        "TrainingFailure",
        "TurnwiseError",
        "WorkerLost",
    ),
    "turnwise.inference.base": ("BaseInferenceEngine",),
    "turnwise.inference.batch": ("BatchInferenceManager",),
    "turnwise.inference.chat": ("Chat",),
    "turnwise.inference.engine": ("Engine", "Generation", "Sampling"),
    "turnwise.inference.faces": (
        "OpenAIInferenceEngine",
        "SGLangInferenceEngine",
        "SGLangServerInferenceEngine",
        "TransformersInferenceEngine",
        "VLLMInferenceEngine",
    ),
    "turnwise.inference.factory": ("create_inference_engine",),
    "turnwise.inference.openai_engine": ("OpenAIEngine",),
    "turnwise.inference.scripted": ("ScriptedEngine",),
    "turnwise.inference.sglang_engine": ("SGLangEngine",),
    "turnwise.inference.sglang_server": ("SGLangServerEngine",),
    "turnwise.models": ("resolve",),
    "turnwise.records.episodes": ("read_episodes",),
    "turnwise.records.run_folder": ("RunFolder",),
    "turnwise.rollout.episode": ("EpisodeStart", "run_episode"),
    "turnwise.rollout.evaluation": ("EvaluationPlan", "evaluate", "run_evaluation"),
    "turnwise.rollout.evaluation_result": ("EvaluationResult",),
    "turnwise.rollout.harness": ("MultiTurnChatHarness", "MultiTurnManager"),
    "turnwise.rollout.judge": ("JudgeReward",),
    "turnwise.rollout.limits": ("Limits",),
    "turnwise.rollout.multi_turn": ("MultiTurnInferenceEngine",),
    "turnwise.rollout.reward_manager": ("RewardManager", "RewardTerm"),
    "turnwise.rollout.reward_wrapper": ("EnvironmentRewardWrapper",),
    "turnwise.tools.definition": ("ToolCall", "ToolDefinition", "ToolResult"),
    "turnwise.tools.mcp": ("add_mcp_server",),
    "turnwise.tools.parsing": (
        "ActionParser",
        "FormatProblem",
        "FunctionCallingParser",
        "JSONActionParser",
        "NativeParser",
        "ParsedAction",
        "PlainTextParser",
        "ReActActionParser",
    ),
    "turnwise.tools.registry": ("ToolRegistry",),
    "turnwise.tools.sandbox": ("PythonTool", "SandboxLimits", "run_python"),
    "turnwise.tools.tool": ("EnvironmentStepTool", "Tool", "current_episode", "tool", "tools_of"),
    "turnwise.trainer": ("RayPPOTrainer", "create_trainer"),
    "turnwise.trainer.dataset": ("CustomEnvironmentDataset",),
    "turnwise.trajectory": ("Outcome", "RolloutData", "TokenBuffer", "Trajectory", "TurnRecord"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a public name the first time it is asked for (PEP 562)."""
    if name == "algo":
        return import_module("turnwise.algo")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'turnwise' has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
