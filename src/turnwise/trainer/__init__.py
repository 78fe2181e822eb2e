"""Training: `RayPPOTrainer` in front, verl behind it."""

from turnwise.trainer.create import create_trainer
from turnwise.trainer.ray_ppo_trainer import RayPPOTrainer

__all__ = ["RayPPOTrainer", "create_trainer"]
