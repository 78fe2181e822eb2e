"""Training: `RayPPOTrainer` in the user's process, verl in Ray actors.

Start reading in `ray_ppo_trainer`. Only `trainer.verl` imports verl.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from turnsmith.config import ConfigStore
from turnsmith.importing import face
from turnsmith.tools.registry import ToolRegistry
from turnsmith.trainer.dataset import CustomEnvironmentDataset, Tasks
from turnsmith.trainer.ray_ppo_trainer import RayPPOTrainer

__all__ = ["CustomRayPPOTrainer", "RayPPOTrainer", "create_trainer"]

__getattr__ = face(__name__, "EnvironmentRewardWrapper PolicyValueModel PPOBatch")


class CustomRayPPOTrainer(RayPPOTrainer):
    """The specification's other name for `RayPPOTrainer`.

    Example:
        >>> from turnsmith import ConfigStore
        >>> CustomRayPPOTrainer(ConfigStore(), "turnsmith.env.examples:GuessNumber").run
    """


def create_trainer(
    config: ConfigStore,
    environment: Any,
    reward_fn: Callable[..., Any] | None = None,
    dataset: CustomEnvironmentDataset | Tasks | None = None,
    tokenizer: Any = None,
    tools: ToolRegistry | None = None,
    validation: Any = None,
) -> RayPPOTrainer:
    """Make a `RayPPOTrainer`.

    Example:
        >>> from turnsmith import ConfigStore
        >>> create_trainer(ConfigStore(), "turnsmith.env.examples:GuessNumber").parts.environment.name
        'GuessNumber'
    """
    return RayPPOTrainer(config, environment, reward_fn, dataset, tools, validation, tokenizer=tokenizer)
