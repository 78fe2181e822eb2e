"""What a run is made of, and how its folder keeps it: settings, starts, and the names of the user's own parts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnsmith.config import ConfigStore
from turnsmith.config_sources import to_dict
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.records.run_folder import RunFolder
from turnsmith.tools.registry import ToolRegistry
from turnsmith.trainer.dataset import CustomEnvironmentDataset
from turnsmith.trainer.recipe import Recipe
from turnsmith.trainer.validation import Validation


@dataclass(frozen=True)
class RunInputs:
    """Everything that the user gave."""

    config: ConfigStore
    environment: EnvironmentSpec
    reward_fn: Callable[..., Any] | None
    dataset: CustomEnvironmentDataset
    tools: ToolRegistry | None
    validation: Validation

    def new_folder(self) -> RunFolder:
        """A folder for a new run."""
        checkpoint = self.config.checkpoint
        name = checkpoint.run_name or f"{self.environment.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        return RunFolder.create(Path(checkpoint.output_dir).absolute(), name)

    def write(self, folder: RunFolder, theirs: Any, *, is_new: bool) -> None:
        """Keep the settings, ours and verl's, and the starts; those of a run that goes on are there already."""
        from omegaconf import OmegaConf

        folder.write_config(to_dict(self.config))
        folder.write_verl_config(OmegaConf.to_yaml(theirs))
        if is_new:
            self.dataset.save(folder.path, self.config.training.seed)
        if self.config.evaluation.every:
            self.validation.save(folder.path)

    def write_recipe(self, folder: RunFolder, last_step: int, steps_in_epoch: int) -> None:
        """Keep what resuming needs besides."""
        settings, curriculum = self.config.environment, self.dataset.curriculum
        recipe = Recipe.of(self.environment, settings, self.reward_fn, self.tools, curriculum)
        if self.config.evaluation.every and self.validation.environment != self.environment:
            recipe.validate_in(self.validation.environment, settings)
        recipe.steps, recipe.steps_in_epoch = last_step, steps_in_epoch
        recipe.write(folder.path)
