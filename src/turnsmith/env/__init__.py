"""What the user writes: environments, how they are built anywhere, and how they are run without blocking.

This floor knows nothing of models, tokens or training.
"""

from __future__ import annotations

from turnsmith.env.base import BaseEnvironment
from turnsmith.env.local_host import EnvironmentHost, StepResult
from turnsmith.env.spec import EnvironmentSpec

__all__ = ["BaseEnvironment", "EnvironmentHost", "EnvironmentSpec", "StepResult"]
