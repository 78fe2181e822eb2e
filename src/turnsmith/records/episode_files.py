"""Which files of a run have its episodes, and which steps are in each of them.

`step-<step>-<part>.parquet` is what one process wrote for a step. `steps-<first>-<last>.parquet` was merged from such
files, and stands for all files of these steps, whether or not they have been deleted.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnsmith.errors import RecordError
from turnsmith.records.episode_schema import SCHEMA

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from turnsmith.records.run_folder import RunFolder

_FILE_NAME = re.compile(r"(?:step-(\d+)-.+|steps-(\d+)-(\d+))\.parquet")


def episode_files(source: RunFolder | str | Path) -> list[Path]:
    """The episode files of a run, ordered by step and part, without those that were merged; given a file, that file."""
    path = Path(source)
    if path.is_file():
        return [path]
    folder = path / "episodes" if (path / "episodes").is_dir() else path
    if not folder.is_dir():
        raise RecordError(f"There are no episodes at {path}: it is neither a run folder nor a file.")
    found = [(steps, file) for file in folder.iterdir() if (steps := steps_of(file))]
    # The steps of two merged files are disjoint, or one has all of the other's: the larger comes first.
    found.sort(key=lambda each: (each[0].start, -each[0].stop, not is_merged(each[1]), each[1].name))
    files: list[Path] = []
    merged = 0
    for steps, file in found:
        if steps.stop > merged:
            files.append(file)
            merged = steps.stop if is_merged(file) else merged
    return files


def steps_of(file: Path) -> range | None:
    """The steps whose episodes a file has, by its name; None: it is not called like an episode file.

    Example:
        >>> steps_of(Path("step-00000007-0.parquet")), steps_of(Path("steps-00000001-00000004.parquet"))
        (range(7, 8), range(1, 5))
    """
    match = _FILE_NAME.fullmatch(file.name)
    if match is None:
        return None
    first, last = (match[1], match[1]) if match[1] else (match[2], match[3])
    return range(int(first), int(last) + 1)


def is_merged(file: Path) -> bool:
    """Whether an episode file was made of several others."""
    return file.name.startswith("steps-")


def row_groups_of(parquet: pq.ParquetFile, step: int | None) -> list[int]:
    """The row groups of an episode file that may have episodes of `step`; None: all."""
    column = SCHEMA.get_field_index("step")
    found: list[int] = []
    for place in range(parquet.num_row_groups):
        known: Any = parquet.metadata.row_group(place).column(column).statistics
        if step is None or known is None or not known.has_min_max or known.min <= step <= known.max:
            found.append(place)
    return found
