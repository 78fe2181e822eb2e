"""What one step's episodes were trained with, token by token: advantages, what they were computed from, log-probs.

One Parquet file per step, beside the episodes. Numbers repeat within a turn or an episode, so they compress well.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from turnsmith.errors import RecordError
from turnsmith.records.files import atomic_write, make_folder
from turnsmith.records.parquet_reader import ParquetSource, read_batches
from turnsmith.records.run_folder import RunFolder

_NUMBERS = pa.list_(pa.float32())
_COLUMNS = ("advantages", "values", "rewards", "trainer_log_probs")
_SCHEMA: Any = pa.schema([("episode_id", pa.string()), *((name, _NUMBERS) for name in _COLUMNS)])


@dataclass(slots=True)
class StepAdvantages:
    """The advantages of one step, by episode id.

    Each list has one number for every token after the prompt, and 0 on tokens that the model did not sample.
    """

    advantages: dict[str, Sequence[float]] = field(default_factory=dict)
    """The advantages that the actor was trained with."""
    values: dict[str, Sequence[float]] = field(default_factory=dict)
    """The critic's values; empty without a critic."""
    rewards: dict[str, Sequence[float]] = field(default_factory=dict)
    """Rewards minus the KL penalty; empty if `use_kl_in_reward` is off, because then the episodes hold them."""
    trainer_log_probs: dict[str, Sequence[float]] = field(default_factory=dict)
    """The trainer's log-prob of each sampled token, before the update; the episode has the engine's. Empty in files of
    earlier versions, and if verl trains on the engine's instead (its `bypass_mode`)."""


def write_advantages(folder: RunFolder | str | Path, step: int, records: StepAdvantages) -> Path:
    """Write `trained/step-<step>.parquet` of a run; an existing file of that step is replaced."""
    target = _path(folder, step)
    make_folder(target.parent)
    episode_ids = list(records.advantages)
    columns = [pa.array(episode_ids, pa.string())]
    columns += [pa.array([getattr(records, name).get(key) for key in episode_ids], _NUMBERS) for name in _COLUMNS]
    with atomic_write(target) as temporary:
        pq.write_table(pa.table(columns, schema=_SCHEMA), temporary, compression="zstd")
    return target


def read_advantages(
    folder: RunFolder | str | Path, step: int, episodes: Collection[str] | None = None
) -> StepAdvantages:
    """Read what `write_advantages` wrote, or only these episodes of it.

    Raises:
        RecordError: The file is damaged.
        FileNotFoundError: There is none.

    Example:
        >>> import tempfile
        >>> run = RunFolder.create(tempfile.mkdtemp(), "demo")
        >>> file = write_advantages(run, 1, StepAdvantages(advantages={"e1": [0.5, 0.0]}))
        >>> read_advantages(run, 1)
        StepAdvantages(advantages={'e1': [0.5, 0.0]}, values={}, rewards={}, trainer_log_probs={})
    """
    return parse_advantages(_path(folder, step), episodes)


def parse_advantages(source: ParquetSource, episodes: Collection[str] | None = None) -> StepAdvantages:
    """Read a file that `write_advantages` wrote, or a stream with its bytes.

    Raises:
        RecordError: It is damaged.
    """
    found, seen = StepAdvantages(), set[str]()
    only = None if episodes is None else pc.field("episode_id").isin(pa.array(list(episodes), pa.string()))
    for batch in read_batches(source, _SCHEMA, optional=("trainer_log_probs",), nullable=_COLUMNS):
        table = pa.Table.from_batches([batch])
        for row in (table if only is None else table.filter(only)).to_pylist():
            if row["episode_id"] in seen:
                name = source if isinstance(source, Path) else "it"
                raise RecordError(f"The Parquet file {name} is damaged: it has the episode {row['episode_id']} twice.")
            seen.add(row["episode_id"])
            for name in _COLUMNS:
                if row.get(name) is not None:
                    getattr(found, name)[row["episode_id"]] = row[name]
    return found


def _path(folder: RunFolder | str | Path, step: int) -> Path:
    return Path(folder) / "trained" / f"step-{step:08d}.parquet"
