"""`create_trainer`: the specification's function for making a trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from turnsmith.config import ConfigStore
from turnsmith.tools.registry import ToolRegistry
from turnsmith.trainer.dataset import CustomEnvironmentDataset, Tasks
from turnsmith.trainer.ray_ppo_trainer import RayPPOTrainer


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
        >>> create_trainer(ConfigStore(), "turnsmith.env.examples:GuessNumber").environment.name
        'GuessNumber'
    """
    return RayPPOTrainer(config, environment, reward_fn, dataset, tools, validation, tokenizer=tokenizer)
