"""What the user writes: environments, how they are built anywhere, and how they are run without blocking.

This floor knows nothing of models, tokens or training.
"""

from __future__ import annotations

from turnwise.env.base import BaseEnvironment
from turnwise.env.host import EnvironmentHost, StepResult
from turnwise.env.spec import EnvironmentSpec

__all__ = ["BaseEnvironment", "EnvironmentHost", "EnvironmentSpec", "StepResult"]
