"""What the trainer made of a step's episodes: the advantage of every token, and what it came from.

One Parquet file a step, beside the episodes. The numbers repeat within a turn or an episode, so they pack to little.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from turnsmith.records.files import replacing
from turnsmith.records.run_folder import RunFolder

_NUMBERS = pa.list_(pa.float32())
_COLUMNS = ("advantages", "values", "rewards")
_SCHEMA: Any = pa.schema([("episode_id", pa.string()), *((name, _NUMBERS) for name in _COLUMNS)])


@dataclass(slots=True)
class StepAdvantages:
    """One step. Each list has one number for every token after the prompt; 0 where the model did not speak."""

    advantages: dict[str, Sequence[float]] = field(default_factory=dict)
    """By episode id: what the actor was trained with."""
    values: dict[str, Sequence[float]] = field(default_factory=dict)
    """By episode id: what the critic expected; empty without a critic."""
    rewards: dict[str, Sequence[float]] = field(default_factory=dict)
    """By episode id: the rewards less the KL penalty; empty where `use_kl_in_reward` is off: see the episodes."""


def write_advantages(folder: RunFolder | str | Path, step: int, trained: StepAdvantages) -> Path:
    """Write `trained/step-<step>.parquet` of a run; the same step again replaces it."""
    target = _path(folder, step)
    target.parent.mkdir(parents=True, exist_ok=True)
    rows = list(trained.advantages)
    columns = [pa.array(rows, pa.string())]
    columns += [pa.array([getattr(trained, name).get(row) for row in rows], _NUMBERS) for name in _COLUMNS]
    with replacing(target) as beside:
        pq.write_table(pa.table(columns, schema=_SCHEMA), beside, compression="zstd")
    return target


def read_advantages(
    folder: RunFolder | str | Path, step: int, episodes: Collection[str] | None = None
) -> StepAdvantages:
    """Read what `write_advantages` wrote; with `episodes`, only those.

    Example:
        >>> import tempfile
        >>> run = RunFolder.create(tempfile.mkdtemp(), "demo")
        >>> file = write_advantages(run, 1, StepAdvantages(advantages={"e1": [0.5, 0.0]}))
        >>> read_advantages(run, 1)
        StepAdvantages(advantages={'e1': [0.5, 0.0]}, values={}, rewards={})
    """
    wanted = None if episodes is None else [("episode_id", "in", list(episodes))]
    table = pq.read_table(_path(folder, step), schema=_SCHEMA, filters=wanted).to_pydict()
    columns = [
        {row: numbers for row, numbers in zip(table["episode_id"], table[name], strict=True) if numbers is not None}
        for name in _COLUMNS
    ]
    return StepAdvantages(*columns)


def _path(folder: RunFolder | str | Path, step: int) -> Path:
    root = folder.path if isinstance(folder, RunFolder) else Path(folder)
    return root / "trained" / f"step-{step:08d}.parquet"
