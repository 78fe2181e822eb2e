"""What every episode of a run has in common."""

from __future__ import annotations

from dataclasses import dataclass

from turnsmith.rollout.spec import RolloutSpec
from turnsmith.trainer.dataset import Curriculum


@dataclass(frozen=True)
class EpisodePlan:
    """Sent once to each process that runs episodes. Imports no verl, so that the user's process can make it."""

    rollout: RolloutSpec
    """Its parser is set in the process that runs the episodes, from `tool_format` and the tokenizer."""
    run_dir: str
    tool_format: str = "function_calling"
    with_anchors: bool = False
    """Whether training compares turns by the observation they began from."""
    curriculum: Curriculum | None = None
    """What chooses the starts, if not a list of them."""
