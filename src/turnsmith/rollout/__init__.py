"""Playing episodes: training, evaluation, replay and checks all use the one loop in `episode`."""

from __future__ import annotations

from turnsmith.rollout.episode import EpisodeStart, run_episode
from turnsmith.rollout.spec import Limits

__all__ = ["EpisodeStart", "Limits", "run_episode"]
