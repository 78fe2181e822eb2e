"""Training: `RayPPOTrainer` in front, verl behind it."""

from turnwise.trainer.ray_ppo_trainer import RayPPOTrainer, create_trainer

__all__ = ["RayPPOTrainer", "create_trainer"]
