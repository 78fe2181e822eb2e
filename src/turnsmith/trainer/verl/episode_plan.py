"""What every episode of a run has in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from turnsmith.env.spec import EnvironmentSpec
from turnsmith.inference.engine import Sampling
from turnsmith.rollout.failure_policy import FailurePolicy
from turnsmith.rollout.limits import Limits
from turnsmith.tools.registry import ToolRegistry
from turnsmith.trainer.dataset import Curriculum


@dataclass(frozen=True)
class EpisodePlan:
    """Sent once to each process that runs episodes. Imports no verl, so that the user's process can make it."""

    environment: EnvironmentSpec
    limits: Limits
    sampling: Sampling
    run_dir: str
    reward_fn: Callable[..., Any] | None = None
    tools: ToolRegistry | None = None
    tool_format: str = "function_calling"
    estimator: str = "grpo"
    """`training.adv_estimator`."""
    credit: str = "episode"
    """`training.credit`."""
    failures: FailurePolicy = field(default_factory=FailurePolicy)
    """What to do when something goes wrong in an episode."""
    curriculum: Curriculum | None = None
    """What chooses the starts, if not a list of them."""
