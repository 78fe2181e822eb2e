"""THE episode loop: evaluation, training, replay and checks all run this one function."""

from __future__ import annotations

from turnsmith.rollout.episode import EpisodeStart, run_episode
from turnsmith.rollout.limits import Limits

__all__ = ["EpisodeStart", "Limits", "run_episode"]
