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
    from turnwise.config import (
        CheckpointConfig,
        ConfigStore,
        EnvironmentConfig,
        InferenceConfig,
        ModelConfig,
        RayConfig,
        TrainingConfig,
    )
    from turnwise.env.base import BaseEnvironment
    from turnwise.env.spec import EnvironmentSpec
    from turnwise.errors import (
        ConfigError,
        EngineFailure,
        EnvironmentFailure,
        MissingDependency,
        RecordError,
        TrainingFailure,
        TurnwiseError,
    )
    from turnwise.inference.chat import Chat
    from turnwise.inference.engine import Engine, Generation, Sampling
    from turnwise.inference.scripted import ScriptedEngine
    from turnwise.records.episodes import read_episodes
    from turnwise.records.run_folder import RunFolder
    from turnwise.rollout.episode import EpisodeStart, run_episode
    from turnwise.rollout.limits import Limits
    from turnwise.trainer import RayPPOTrainer, create_trainer
    from turnwise.trajectory import Outcome, TokenBuffer, Trajectory, TurnRecord

__version__ = "0.1.0"

__all__ = [
    "BaseEnvironment",
    "Chat",
    "CheckpointConfig",
    "ConfigError",
    "ConfigStore",
    "Engine",
    "EngineFailure",
    "EnvironmentConfig",
    "EnvironmentFailure",
    "EnvironmentSpec",
    "EpisodeStart",
    "Generation",
    "InferenceConfig",
    "Limits",
    "MissingDependency",
    "ModelConfig",
    "Outcome",
    "RayConfig",
    "RayPPOTrainer",
    "RecordError",
    "RunFolder",
    "Sampling",
    "ScriptedEngine",
    "TokenBuffer",
    "TrainingConfig",
    "TrainingFailure",
    "Trajectory",
    "TurnRecord",
    "TurnwiseError",
    "__version__",
    "create_trainer",
    "read_episodes",
    "run_episode",
]

# Where each public name lives; a test holds this table, `__all__` and the imports above together.
_HOME = {
    "turnwise.config": (
        "CheckpointConfig",
        "ConfigStore",
        "EnvironmentConfig",
        "InferenceConfig",
        "ModelConfig",
        "RayConfig",
        "TrainingConfig",
    ),
    "turnwise.env.base": ("BaseEnvironment",),
    "turnwise.env.spec": ("EnvironmentSpec",),
    "turnwise.errors": (
        "ConfigError",
        "EngineFailure",
        "EnvironmentFailure",
        "MissingDependency",
        "RecordError",
        "TrainingFailure",
        "TurnwiseError",
    ),
    "turnwise.inference.chat": ("Chat",),
    "turnwise.inference.engine": ("Engine", "Generation", "Sampling"),
    "turnwise.inference.scripted": ("ScriptedEngine",),
    "turnwise.records.episodes": ("read_episodes",),
    "turnwise.records.run_folder": ("RunFolder",),
    "turnwise.rollout.episode": ("EpisodeStart", "run_episode"),
    "turnwise.rollout.limits": ("Limits",),
    "turnwise.trainer": ("RayPPOTrainer", "create_trainer"),
    "turnwise.trajectory": ("Outcome", "TokenBuffer", "Trajectory", "TurnRecord"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a public name the first time it is asked for (PEP 562)."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'turnwise' has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
