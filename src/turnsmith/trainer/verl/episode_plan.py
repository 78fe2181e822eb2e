"""What all episodes of a run have in common."""

from __future__ import annotations

from dataclasses import dataclass

from turnsmith.rollout.spec import RolloutSpec
from turnsmith.trainer.dataset import Curriculum


@dataclass(frozen=True)
class EpisodePlan:
    """Sent once to each process that runs episodes. Imports no verl, so that the user's process can build it."""

    rollout: RolloutSpec
    """Without a parser, the process that runs the episodes makes the one that `tool_format` names."""
    run_dir: str
    lock_token: str = ""
    """With which this run is held: whoever writes to its folder looks whether it still is."""
    tool_format: str = "function_calling"
    thinking: bool | None = None
    """`inference.thinking`."""
    chat_template: str | None = None
    """The text of `model.chat_template`."""
    estimator: str = "grpo"
    """`training.adv_estimator`."""
    credit: str = "episode"
    """`training.credit`."""
    filtered_group_size: int = 0
    """`training.group_size`, if groups with equal rewards are replaced; else 0."""
    curriculum: Curriculum | None = None
    """Chooses the starts, if the dataset has one."""
