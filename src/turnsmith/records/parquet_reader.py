"""Reads a Parquet file of a run folder in batches that have the columns they should, checked to the last value.

A run folder may be somebody else's, or damaged: whatever is wrong with a file is a `RecordError`.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from turnsmith.errors import RecordError

ParquetSource = Path | BinaryIO
"""A Parquet file, or a stream with its bytes."""


@contextmanager
def damage_named(source: ParquetSource) -> Generator[None]:
    """Turn the errors that a damaged file causes in Arrow or in our conversions into a `RecordError` with its name."""
    try:
        yield
    except FileNotFoundError:  # not damaged, but merged with others
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError, RecursionError) as error:
        name = source if isinstance(source, Path) else "it"
        raise RecordError(f"Cannot read the Parquet file {name}: {str(error)[:500]}") from error


def read_batches(
    source: ParquetSource,
    schema: Any,
    *,
    version: str | None = None,
    optional: Collection[str] = (),
    nullable: Collection[str] = (),
    step: int | None = None,
) -> Iterator[Any]:
    """The rows of a file as Arrow record batches with the columns of `schema`; others are not read.

    Args:
        source: The file.
        schema: The columns to read, with their types.
        version: The format that the file must say it has; None: any.
        optional: Columns that may be missing.
        nullable: Columns that may have nulls. In others, and within lists, a null is damage.
        step: Leave out row groups without this step, by their statistics; None: read all.

    Raises:
        RecordError: The file is damaged, or is something else.
    """
    if isinstance(source, Path) and source.exists() and not source.is_file():
        raise RecordError(f"{source} is not a file.")
    with damage_named(source), pq.ParquetFile(source) as parquet:
        names = _check_columns(parquet.schema_arrow, schema, version, optional)
        groups = _row_groups_of(parquet, step)
        threads = isinstance(source, Path)  # for a stream in memory, threads cost more than they save
        for batch in parquet.iter_batches(batch_size=64, row_groups=groups, columns=names, use_threads=threads):
            batch.validate(full=True)  # offsets, dictionary indices and UTF-8, which Arrow otherwise trusts
            for name in names:
                if _has_null(batch.column(name), may_be_null=name in nullable):
                    raise ValueError(f"its column {name} has a null")
            yield batch


def _check_columns(actual: Any, schema: Any, version: str | None, optional: Collection[str]) -> list[str]:
    known = (actual.metadata or {}).get(b"turnsmith.format", b"").decode()
    if version is not None and known != version:
        raise ValueError(f"it has format {known or 'none'}, but this turnsmith reads {version}")
    names: list[str] = []
    for field in schema:
        if field.name not in actual.names and field.name in optional:
            continue
        place = actual.get_field_index(field.name)  # -1 if there are several
        if place < 0:
            raise ValueError(f"it has no single column {field.name}")
        if _decoded(actual.field(place).type) != _decoded(field.type):
            raise ValueError(f"its column {field.name} is of type {actual.field(place).type}, not {field.type}")
        names.append(field.name)
    return names


def _decoded(kind: Any) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _has_null(column: Any, *, may_be_null: bool = False) -> bool:
    """Whether a column has a null that it may not have, itself or in its lists and structs."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.null_count and not may_be_null:
        return True
    if pa.types.is_list(column.type):
        return _has_null(column.flatten())
    return pa.types.is_struct(column.type) and any(map(_has_null, column.flatten()))


def _row_groups_of(parquet: pq.ParquetFile, step: int | None) -> list[int]:
    """The row groups that may have rows of `step`; None: all."""
    metadata: Any = parquet.metadata
    paths = [parquet.schema.column(place).path for place in range(len(parquet.schema))]
    if step is None or "step" not in paths:
        return list(range(metadata.num_row_groups))
    groups: list[int] = []
    for place in range(metadata.num_row_groups):
        known = metadata.row_group(place).column(paths.index("step")).statistics
        if known is None or not known.has_min_max or known.min <= step <= known.max:
            groups.append(place)
    return groups
