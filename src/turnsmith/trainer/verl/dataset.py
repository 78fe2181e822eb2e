"""Our dataset for verl: one row per group, with a seed and possibly a task."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from turnsmith.trainer.dataset import ENDLESS, Curriculum
from turnsmith.trainer.mix_dataset import MixDataset, load_dataset

_curriculum: Curriculum | None = None


def set_curriculum(curriculum: Curriculum | None) -> None:
    """Set the curriculum, before verl builds the dataset: it does so from a path alone."""
    global _curriculum
    _curriculum = curriculum


class EpisodeDataset(Dataset[dict[str, Any]]):
    """Row `i` starts group `i` of the run. verl's data loader saves the state of the stream in checkpoints."""

    def __init__(self, data_files: Any, tokenizer: Any = None, config: Any = None, **unused: Any) -> None:
        path = data_files if isinstance(data_files, str) else data_files[0]
        self.stream = load_dataset(Path(path).parent, _curriculum)
        self.first = self.stream.position

    def __len__(self) -> int:
        return ENDLESS  # the number of steps decides how many rows are read

    def __getitem__(self, index: int) -> dict[str, Any]:
        start = self.stream.start(self.first + index)
        return {
            # verl counts a batch by this column; the environment makes the real prompt.
            "raw_prompt": [{"role": "user", "content": ""}],
            "index": start["index"],
            "start_seed": start["seed"],
            "start_task": "" if start["task"] is None else json.dumps(start["task"]),
            "start_environment": start.get("environment", ""),
        }

    def record(
        self, rewards: Mapping[str, list[float]], successes: Mapping[str, tuple[int, int]] | None = None
    ) -> None:
        """Record finished groups for the curriculum.

        Args:
            rewards: The rewards of each group's episodes, by group id.
            successes: In a mix, the successful and all episodes of each environment.
        """
        # An exact sum: episodes finish in any order, and a repeated run must give the same.
        means = {int(group): math.fsum(paid) / len(paid) if paid else None for group, paid in rewards.items()}
        self.stream.record(means, successes)

    def metrics(self) -> dict[str, float]:
        """In a mix, the share of each environment in the next groups."""
        shares = self.stream.shares() if isinstance(self.stream, MixDataset) else {}
        return {f"environment/{name}/share": share for name, share in shares.items()}

    def state_dict(self) -> dict[str, Any]:
        return self.stream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stream.load_state_dict(state)
