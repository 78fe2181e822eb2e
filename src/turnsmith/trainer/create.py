"""`create_trainer`: the specification's function for making a trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from turnsmith.config import ConfigStore
from turnsmith.errors import ConfigError
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
    """Make a `RayPPOTrainer`. The model's own tokenizer is always used; if `tokenizer` is passed it must be that one.

    Example:
        >>> from turnsmith import ConfigStore
        >>> create_trainer(ConfigStore(), "turnsmith.env.examples:GuessNumber").environment.name
        'GuessNumber'
    """
    named = getattr(tokenizer, "name_or_path", None)
    if named and named not in (config.model.model_name, config.model.local_path):
        raise ConfigError(
            f"The tokenizer comes from {named!r}, but the model is {config.model.model_name!r}: leave tokenizer out."
        )
    return RayPPOTrainer(config, environment, reward_fn, dataset, tools, validation)
