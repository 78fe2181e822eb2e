"""Training: `RayPPOTrainer` in front, verl behind it."""

from turnsmith.trainer.create import create_trainer
from turnsmith.trainer.ray_ppo_trainer import RayPPOTrainer

__all__ = ["RayPPOTrainer", "create_trainer"]
