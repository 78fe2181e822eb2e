"""The starts of episodes as the dataset verl reads: one row a group, a seed and maybe a task in each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

_ENDLESS = 10**9


class EpisodeStarts(Dataset[dict[str, Any]]):
    """Row `i` starts group `i`: seed `seed + i`, task `i` modulo the number of tasks."""

    def __init__(self, data_files: Any, tokenizer: Any = None, config: Any = None, **unused: Any) -> None:
        path = data_files if isinstance(data_files, str) else data_files[0]
        plan = json.loads(Path(path).read_text())
        self.seed: int = plan["seed"]
        self.tasks: list[dict[str, Any]] = plan["tasks"]

    def __len__(self) -> int:
        return _ENDLESS  # a stream; how far it is read is decided by the number of steps

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            # verl counts a batch by this column; the true prompt is made by the environment.
            "raw_prompt": [{"role": "user", "content": ""}],
            "index": index,
            "start_seed": self.seed + index,
            "start_task": json.dumps(self.tasks[index % len(self.tasks)]) if self.tasks else "",
        }
