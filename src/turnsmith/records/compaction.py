"""Merges the many small episode files of a run into few, however many processes write them.

Safe to interrupt at any point: a merged file appears complete under its own name. From then on it replaces the files
that it was made of, even before they are deleted.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from turnsmith.errors import RecordError
from turnsmith.records.episode_files import episode_files, is_merged, steps_of
from turnsmith.records.episode_schema import SCHEMA
from turnsmith.records.episodes import WRITER_OPTIONS
from turnsmith.records.files import atomic_write, check_writable

_MOST_SMALL_FILES = 64
_SMALL_BYTES = 8 * 2**20
_BLOCK_BYTES = 64 * 2**20
_MOST_TABLES = 16
_SHARED_BYTES = 2**18
"""Short steps share a row group up to this size, because every row group takes about 26 kB of memory."""


class EpisodeCompactor:
    """Merges the episode files of a run in a thread, while the run writes more of them.

    It always uses the same thread, because other threads cannot reuse the memory that a thread has freed.

    Args:
        folder: The folder of the episodes.
        warn: Called with a sentence if it fails; the files then stay as they are.
    """

    def __init__(self, folder: Path, warn: Callable[[str], None]) -> None:
        self._folder = folder
        self._warn = warn
        self._done: queue.Queue[int] = queue.Queue(1)
        self._thread: threading.Thread | None = None

    def step_done(self, step: int) -> None:
        """Note that no more episodes of this step will be written."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True, name="compaction")
            self._thread.start()
        with suppress(queue.Full):  # it is busy; the next step starts it again
            self._done.put_nowait(step)

    def wait(self) -> None:
        """Wait until it has nothing to do."""
        self._done.join()

    def _work(self) -> None:
        while True:
            step = self._done.get()
            try:
                compact_episodes(self._folder, step)
            except RecordError:
                return  # another process has the run; the next write reports that
            except (OSError, pa.ArrowException) as error:
                self._warn(
                    f"The episode files in {self._folder} could not be merged: {error}. They can be read as they are."
                )
            finally:
                self._done.task_done()


def compact_episodes(folder: Path, last_step: int, most: int = _MOST_SMALL_FILES) -> None:
    """Merge small files of steps up to `last_step`, if there are more than `most` of them.

    No process may write episodes of these steps any more. Larger files stay as they are, so that each token is
    rewritten only a few times.
    """
    check_writable(folder)
    kept = episode_files(folder)
    _delete_merged(folder, kept)
    done = [(file, steps) for file in kept if (steps := steps_of(file)) and steps.stop <= last_step + 1]
    small = {file for file, _ in done if file.stat().st_size < _SMALL_BYTES}
    if len(small) <= most:
        return
    alone = {step for file, steps in done if file not in small or not _is_current(file) for step in steps}
    for files in _runs(done, alone):
        _write(folder, files)
        _delete_merged(folder, episode_files(folder))


def truncate_episodes(folder: Path, step: int) -> None:
    """Delete the episodes of all steps after `step`."""
    for file in sorted(folder.glob("step*.parquet")):
        steps = steps_of(file)
        if steps and steps.stop > step + 1:
            if steps.start <= step:
                _write(folder, [file], step)
            file.unlink()


def _runs(files: Iterable[tuple[Path, range]], alone: set[int]) -> Iterator[list[Path]]:
    """Groups of files to merge into one: each has consecutive, whole steps."""
    run: list[Path] = []
    last, size = -1, 0
    for file, steps in files:
        if steps.start != last and (not alone.isdisjoint(steps) or size >= _SMALL_BYTES):
            if len(run) > 1:
                yield run
            run, size = [], 0
        last = steps.start
        if alone.isdisjoint(steps):
            run.append(file)
            size += file.stat().st_size
    if len(run) > 1:
        yield run


def _write(folder: Path, files: list[Path], last_step: int | None = None) -> None:
    """Write the episodes of these files to one file, without those after `last_step`."""
    ranges = [steps for file in files if (steps := steps_of(file))]
    last = ranges[-1].stop - 1 if last_step is None else last_step
    target = folder / f"steps-{ranges[0].start:08d}-{last:08d}.parquet"
    with atomic_write(target) as temporary, pq.ParquetWriter(temporary, SCHEMA, **WRITER_OPTIONS) as writer:
        for table in _blocks(files):
            kept = table if last_step is None else table.filter(pc.field("step") <= last_step)
            if len(kept):
                writer.write_table(kept)


def _blocks(files: Iterable[Path]) -> Iterator[Any]:
    """The rows of the files in tables of bounded size. Readers skip tables by step, so only short steps share one."""
    held: list[Any] = []
    size, step = 0, None
    for file in files:
        with pq.ParquetFile(file, pre_buffer=False) as parquet:
            for batch in parquet.iter_batches(batch_size=64, use_threads=False):
                table, row = pa.Table.from_batches([batch]), 0
                for row_step, rows in itertools.groupby(batch.column("step").to_pylist()):
                    if held and size >= (_BLOCK_BYTES if row_step == step else _SHARED_BYTES):
                        yield pa.concat_tables(held)
                        held, size = [], 0
                    held.append(table.slice(row, len(list(rows))))
                    row, size, step = row + len(held[-1]), size + held[-1].nbytes, row_step
                    if len(held) == _MOST_TABLES:
                        held = [pa.concat_tables(held).combine_chunks()]
    if held:
        yield pa.concat_tables(held)


def _delete_merged(folder: Path, kept: list[Path]) -> None:
    """Delete files whose episodes are in a merged file, and files that a killed process left unfinished."""
    merged = {step for file in kept if is_merged(file) for step in steps_of(file) or ()}
    for file in set(folder.glob("step*.parquet")) - set(kept):
        steps = steps_of(file)
        if steps and merged.issuperset(steps):
            file.unlink(missing_ok=True)
    for unfinished in folder.glob(".steps-*.tmp"):
        unfinished.unlink(missing_ok=True)


def _is_current(file: Path) -> bool:
    """Whether a file has exactly the columns that this version writes."""
    schema = pq.read_schema(file)
    return schema.equals(SCHEMA) and schema.metadata == SCHEMA.metadata
