"""Which files of a run have its episodes, and which steps are in each of them.

`step-<step>-<part>.parquet` is what one process wrote for a step. `steps-<first>-<last>.parquet` was merged from such
files, and replaces all files of these steps, even before they are deleted.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from turnsmith.errors import RecordError

if TYPE_CHECKING:
    from turnsmith.records.run_folder import RunFolder

_MOST_STEPS = 1_000_000
"""The most steps in one file: a hostile file name must not make readers count for ever."""
_FILE_NAME = re.compile(r"(?:step-(\d{1,18})-.+|steps-(\d{1,18})-(\d{1,18}))\.parquet", re.DOTALL)


def episode_files(source: RunFolder | str | Path) -> list[Path]:
    """The episode files of a run, ordered by step and part, without those that were merged; given a file, that file."""
    path = Path(source)
    if path.is_file():
        return [path]
    folder = path / "episodes" if (path / "episodes").is_dir() else path
    if not folder.is_dir():
        raise RecordError(f"There are no episodes at {path}: it is neither a run folder nor a file.")
    named = [(steps, file) for file in folder.iterdir() if (steps := steps_of(file))]
    # Two merged files have disjoint steps, or one has all steps of the other; the larger one comes first.
    named.sort(key=lambda each: (each[0].start, -each[0].stop, not is_merged(each[1]), each[1].name))
    files: list[Path] = []
    merged = 0
    for steps, file in named:
        if steps.stop > merged:
            files.append(file)
            merged = steps.stop if is_merged(file) else merged
    return files


def steps_of(file: Path) -> range | None:
    """The steps of an episode file, by its name; None if it has no name of an episode file.

    Example:
        >>> steps_of(Path("step-00000007-0.parquet")), steps_of(Path("steps-00000001-00000004.parquet"))
        (range(7, 8), range(1, 5))
    """
    match = _FILE_NAME.fullmatch(file.name)
    if match is None:
        return None
    first, last = (match[1], match[1]) if match[1] else (match[2], match[3])
    steps = range(int(first), int(last) + 1)
    return steps if len(steps) <= _MOST_STEPS else None


def is_merged(file: Path) -> bool:
    """Whether an episode file was merged from others."""
    return file.name.startswith("steps-")
