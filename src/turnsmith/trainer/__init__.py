"""Training: `RayPPOTrainer` in the user's process, verl in Ray actors.

Start reading in `ray_ppo_trainer`. Only `trainer.verl` imports verl.
"""

from turnsmith.importing import face
from turnsmith.trainer.create import create_trainer
from turnsmith.trainer.ray_ppo_trainer import CustomRayPPOTrainer, RayPPOTrainer

__all__ = ["CustomRayPPOTrainer", "RayPPOTrainer", "create_trainer"]

__getattr__ = face(__name__, "CustomEnvironmentDataset EnvironmentRewardWrapper PolicyValueModel PPOBatch")
