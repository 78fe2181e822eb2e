"""Rows of a dataset as JSON lines in a memory-mapped file: a million of them take 8 MB of memory, not a gigabyte.

Does not know what a row means.
"""

from __future__ import annotations

import csv
import json
import mmap
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from turnsmith.errors import ConfigError, MissingDependency
from turnsmith.records.files import atomic_write

_MOST_WITHOUT_LENGTH = 1_000_000


class TaskFile:
    """A JSON-lines file as a sequence.

    Example:
        >>> table = TaskFile.of([{"task": {"a": 1}}, {"task": {"a": 2}}])
        >>> len(table), table[1]
        (2, {'task': {'a': 2}})
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            if not path.stat().st_size:
                raise ConfigError("The dataset is empty: pass at least one task or seed, or no dataset at all.")
            self._text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._ends = array("Q", accumulate(map(len, file)))

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> TaskFile:
        """Write the rows to a temporary file that is deleted with the object."""
        with tempfile.TemporaryDirectory(prefix="turnsmith-tasks-") as folder:
            path = Path(folder) / "starts.jsonl"
            with path.open("w", encoding="utf-8") as file:
                file.writelines(f"{_line(number, row)}\n" for number, row in enumerate(rows))
            return cls(path)  # the mapping stays readable when the file is unlinked

    def save(self, path: Path) -> None:
        """Copy the file."""
        with atomic_write(path) as temporary, temporary.open("wb") as file:
            file.write(self._text)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return json.loads(self._text[self._ends[number - 1] if number else 0 : self._ends[number]])


def read_tasks(source: Any) -> Iterator[dict[str, Any]]:
    """The tasks in an iterable of mappings (a list, a Hugging Face dataset), in a file, or in a saved dataset's folder.

    Example:
        >>> list(read_tasks([{"a": 1}]))
        [{'a': 1}]
    """
    if isinstance(source, (str, Path)):
        path = Path(source)
        if not path.exists():
            raise ConfigError(f"There is no dataset {str(path)!r}.")
        read = _read_folder if path.is_dir() else _READERS.get(path.suffix)
        if read is None:
            raise ConfigError(
                f"The dataset {str(path)!r} cannot be read: use a file that ends in {', '.join(_READERS)}, or the "
                "folder of a saved Hugging Face dataset."
            )
        source = read(path)
    else:
        source = rows_of(source)
    for number, row in enumerate(source):
        if not isinstance(row, Mapping):
            raise ConfigError(
                f"Row {number} of the dataset is {str(row)[:60]!r}, not a mapping. (Of a DatasetDict, pass one split.)"
            )
        yield dict(row)


def rows_of(source: Any) -> Iterator[Any]:
    """The elements of an iterable or a PyTorch dataset: as many as `len()` says, else until it ends."""
    if not hasattr(source, "__len__"):
        return _limited(source)
    length = len(source)
    return islice(source if hasattr(source, "__iter__") else map(source.__getitem__, range(length)), length)


def _limited(source: Iterable[Any]) -> Iterator[Any]:
    for number, row in enumerate(source):
        if number == _MOST_WITHOUT_LENGTH:
            raise ConfigError(
                f"The dataset has no length, and no end after {number:,} rows: give it a __len__, or pass "
                "CustomEnvironmentDataset(curriculum=...), which may go on for ever."
            )
        yield row


def _read_lines(path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield json.loads(line)
            except ValueError as error:
                raise ConfigError(f"Line {number} of {path} is not JSON: {error}.") from None


def _read_parquet(path: Path) -> Iterator[Any]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=1024):
            yield from batch.to_pylist()


def _read_list(path: Path) -> Iterator[Any]:
    try:
        rows = json.loads(path.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}.") from None
    if not isinstance(rows, list):
        raise ConfigError(f"{path} holds no list of rows.")
    yield from rows


def _read_csv(path: Path) -> Iterator[Any]:
    csv.field_size_limit(2**31 - 1)
    with path.open(encoding="utf-8-sig", newline="") as file:
        yield from csv.DictReader(file)


def _read_folder(path: Path) -> Iterator[Any]:
    if (path / "dataset_dict.json").is_file():
        raise ConfigError(f"{path} holds several splits: pass the folder of one, such as {path / 'train'}.")
    if not (path / "state.json").is_file():
        raise ConfigError(f"{path} is not a saved Hugging Face dataset: pass its folder, or a file.")
    try:
        from datasets import load_from_disk
    except ImportError as error:
        raise MissingDependency("Reading a Hugging Face dataset needs datasets: pip install datasets.") from error
    yield from load_from_disk(str(path))


_READERS: dict[str, Callable[[Path], Iterator[Any]]] = {
    ".jsonl": _read_lines,
    ".json": _read_list,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}


def _as_list(value: Any) -> Any:
    """An array or a tensor as numbers."""
    if not hasattr(value, "tolist"):
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
    return value.tolist()


def _line(number: int, row: Mapping[str, Any]) -> str:
    try:
        return json.dumps(row, ensure_ascii=False, default=_as_list)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"Row {number} of the dataset has no JSON form ({error}): use strings, numbers, lists and mappings."
        ) from None
