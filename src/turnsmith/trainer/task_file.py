"""Rows of a dataset as JSON lines in a memory-mapped file: a million of them take 8 MB of memory, not a gigabyte.

Does not know what a row means.
"""

from __future__ import annotations

import csv
import json
import math
import mmap
import re
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from turnsmith.errors import ConfigError, MissingDependency
from turnsmith.records.files import atomic_write

_MOST_WITHOUT_LENGTH = 1_000_000
_HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""In JSON, half of a character or one of two halves."""
_HAS_HALF = "has a text with half a character (a lone surrogate), which no file or tokenizer can hold."


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
        read = _read_folder if path.is_dir() else _READERS.get(path.suffix) if path.is_file() else None
        if read is None:
            raise ConfigError(
                f"The dataset {str(path)!r} cannot be read: use a file that ends in {', '.join(_READERS)}, or the "
                "folder of a saved Hugging Face dataset."
            )
        source = _readable(path, read(path))
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


def _readable(path: Path, rows: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from rows
    except OSError as error:
        raise ConfigError(f"The dataset {str(path)!r} cannot be read: {error.strerror or error}.") from None


def _lines(path: Path, newline: str | None = None) -> Iterator[str]:
    """The lines of a text file."""
    # With the errors in the text, because those of the decoder do not say in which line they are.
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline=newline) as file:
        for number, line in enumerate(file, start=1):
            if not line.isascii():
                _check_unicode(line, f"Line {number} of {path} is not UTF-8: save the file as UTF-8.")
            yield line


def _check_unicode(text: str, otherwise: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(otherwise) from None


def _read_lines(path: Path) -> Iterator[Any]:
    for number, line in enumerate(_lines(path), start=1):
        yield _from_json(line, f"Line {number} of {path}")


def _from_json(text: str | bytes, name: str) -> Any:
    try:
        text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        value = json.loads(text, object_pairs_hook=_once, parse_float=_as_written)
        if _HALF.search(text):
            _check_unicode(json.dumps(value, ensure_ascii=False), f"{name} {_HAS_HALF}")
        return value
    except RecursionError:
        raise ConfigError(f"{name} is nested too deeply to be read.") from None
    except ValueError as error:
        raise ConfigError(f"{name} is not JSON: {error}.") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError(f"it has the key {_repeated(name for name, _ in pairs)!r} twice")
    return row


def _as_written(number: str) -> float:
    found = float(number)
    if math.isinf(found):
        raise ValueError(f"{number[:20]} is too large a number")
    return found


def _repeated(names: Iterable[str]) -> str:
    return Counter(names).most_common(1)[0][0]


def _read_parquet(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            names = list(file.schema_arrow.names)
            if len(set(names)) < len(names):
                raise ConfigError(f"{path} has the column {_repeated(names)!r} twice: rename one.")
            for batch in file.iter_batches(batch_size=1024):
                yield from batch.to_pylist()
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no Parquet file, or is damaged: {str(error).rstrip('.')}.") from None


def _read_list(path: Path) -> Iterator[Any]:
    rows = _from_json(path.read_bytes(), str(path))
    if not isinstance(rows, list):
        raise ConfigError(f"{path} holds no list of rows.")
    yield from rows


def _read_csv(path: Path) -> Iterator[Any]:
    """Read rows with one value per column; a comma or quote that is not in quotes would add values, and is an error."""
    csv.field_size_limit(2**31 - 1)
    reader, columns = csv.reader(_lines(path, newline=""), strict=True), list[str]()
    while True:
        line = f"Line {reader.line_num + 1} of {path}"
        try:
            values = next(reader, None)
        except csv.Error as error:
            raise ConfigError(
                f"{line} begins a row that is not CSV ({error}): close each quote, and write a quote in a value twice."
            ) from None
        if values is None:
            return
        if values and not columns:
            columns = values
            if len(set(columns)) < len(columns):
                raise ConfigError(f"{line} names the column {_repeated(columns)!r} twice: rename one.")
        elif values:
            if len(values) != len(columns):
                raise ConfigError(
                    f"{line} begins a row of {len(values)} values, and there are {len(columns)} columns: put a value "
                    "with a comma in it into double quotes."
                )
            yield dict(zip(columns, values, strict=True))


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
        text = json.dumps(row, ensure_ascii=False, default=_as_list)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"Row {number} of the dataset has no JSON form ({error}): use strings, numbers, lists and mappings."
        ) from None
    if not text.isascii():
        _check_unicode(text, f"Row {number} of the dataset {_HAS_HALF}")
    return text
