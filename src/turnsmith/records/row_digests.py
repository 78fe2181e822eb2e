"""Digests of the values of recorded episodes, which stay the same when files are merged or rewound."""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from turnsmith.records.episode_schema import FORMAT, NEWER_COLUMNS, NULLABLE_COLUMNS, SCHEMA
from turnsmith.records.parquet_reader import damage_named, read_batches


def row_digests(files: Iterable[Path]) -> Iterator[tuple[int, str]]:
    """Each step in these files, in their order, with the SHA-256 of all values of its rows.

    Raises:
        RecordError: A file is damaged.
        FileNotFoundError: It has been merged with others meanwhile.
    """
    rows, current = _Rows(), None
    for file in files:
        for batch in read_batches(file, SCHEMA, version=FORMAT, optional=NEWER_COLUMNS, nullable=NULLABLE_COLUMNS):
            first = 0
            for step, same in itertools.groupby(batch.column("step").to_pylist()):
                if step != current and current is not None:
                    yield current, rows.digest()
                    rows = _Rows()
                count, current = len(list(same)), step
                with damage_named(file):
                    rows.add(batch.slice(first, count))
                first += count
    if current is not None:
        yield current, rows.digest()


class _Rows:
    """Takes rows in batches of any size; every part of a column has a hash of its own, so the sizes do not matter."""

    def __init__(self) -> None:
        self._hashes: defaultdict[str, Any] = defaultdict(hashlib.sha256)

    def add(self, batch: Any) -> None:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            self._add(name, column)

    def digest(self) -> str:
        parts = (f"{name} {part.hexdigest()}\n" for name, part in sorted(self._hashes.items()))
        return hashlib.sha256("".join(parts).encode()).hexdigest()

    def _add(self, name: str, values: Any) -> None:
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        self._feed(f"{name}?", _bytes(values.is_valid()))
        values = values.drop_null()
        if pa.types.is_list(values.type):
            self._feed(f"{name}#", _bytes(pc.call_function("list_value_length", [values])))
            self._add(f"{name}[]", values.flatten())
        elif pa.types.is_struct(values.type):
            for field, part in zip(values.type, values.flatten(), strict=True):
                self._add(f"{name}.{field.name}", part)
        elif pa.types.is_string(values.type):
            self._feed(f"{name}#", _bytes(pc.call_function("binary_length", [values])))
            self._feed(name, _characters(values))
        else:
            self._feed(name, _bytes(values))

    def _feed(self, name: str, content: memoryview | bytes) -> None:
        self._hashes[name].update(content)


def _bytes(numbers: Any) -> memoryview | bytes:
    """The bytes of numbers or flags without nulls."""
    if not len(numbers):
        return b""
    if pa.types.is_boolean(numbers.type):
        numbers = numbers.cast(pa.uint8())
    width = numbers.type.bit_width // 8
    start = numbers.offset * width
    return memoryview(numbers.buffers()[1])[start : start + len(numbers) * width]


def _characters(texts: Any) -> memoryview | bytes:
    """The bytes of texts without nulls, one after the other."""
    _, places, content = texts.buffers()
    if not len(texts) or content is None:
        return b""
    places = memoryview(places).cast("i")
    return memoryview(content)[places[texts.offset] : places[texts.offset + len(texts)]]
