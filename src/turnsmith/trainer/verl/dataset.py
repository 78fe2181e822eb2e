"""The starts of episodes as the dataset verl reads: one row a group, a seed and maybe a task in each."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from turnsmith.trainer.dataset import ENDLESS, Curriculum, CustomEnvironmentDataset

_curriculum: Curriculum | None = None


def set_curriculum(curriculum: Curriculum | None) -> None:
    """Set what chooses the starts. verl builds the dataset from a path alone, so they meet here; called before it."""
    global _curriculum
    _curriculum = curriculum


class EpisodeDataset(Dataset[dict[str, Any]]):
    """Row `i` starts group `i` of the run. verl's loader keeps the state of the stream in its checkpoints."""

    def __init__(self, data_files: Any, tokenizer: Any = None, config: Any = None, **unused: Any) -> None:
        path = data_files if isinstance(data_files, str) else data_files[0]
        self.stream = CustomEnvironmentDataset.load(Path(path).parent, _curriculum)
        self.first = self.stream.position

    def __len__(self) -> int:
        return ENDLESS  # how far it is read is decided by the number of steps

    def __getitem__(self, index: int) -> dict[str, Any]:
        start = self.stream.start(self.first + index)
        return {
            # verl counts a batch by this column; the true prompt is made by the environment.
            "raw_prompt": [{"role": "user", "content": ""}],
            "index": start["index"],
            "start_seed": start["seed"],
            "start_task": "" if start["task"] is None else json.dumps(start["task"]),
        }

    def record(self, rewards: Mapping[str, list[float]]) -> None:
        """Tell the curriculum how groups went: the rewards of each one's episodes, by its group id."""
        # An exact sum: episodes end in any order, and the same run again must tell the same.
        means = {int(group): math.fsum(paid) / len(paid) if paid else None for group, paid in rewards.items()}
        self.stream.record(means)

    def state_dict(self) -> dict[str, Any]:
        return self.stream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stream.load_state_dict(state)
