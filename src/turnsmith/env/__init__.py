"""Environments: what the user writes, how it is built in any process, and how it runs without blocking.

Knows nothing of models, tokens or training.
"""

from __future__ import annotations

from turnsmith.env.base import BaseEnvironment
from turnsmith.env.local_host import EnvironmentHost, StepResult
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.importing import face

__all__ = ["BaseEnvironment", "EnvironmentHost", "EnvironmentSpec", "StepResult"]

__getattr__ = face(
    __name__,
    "ConfigStore ModelConfig InferenceConfig TrainingConfig CheckpointConfig RayConfig EnvironmentConfig "
    "SimpleGameEnvironment CustomGameEnvironment Trajectory RolloutData",
)
