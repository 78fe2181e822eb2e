"""Parquet files of somebody else: what is read has the columns and values that it should, or is an error in words."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from turnsmith.errors import RecordError
from turnsmith.records.parquet_reader import read_batches

NAMES = pa.list_(pa.string())
SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("name", pa.string()),
        ("names", NAMES),
        ("part", pa.struct([("size", pa.int32()), ("inner", pa.struct([("names", NAMES)]))])),
    ]
)
GOOD: dict[str, Any] = {
    "step": [1, 2],
    "name": ["a", "b"],
    "names": [["c"], []],
    "part": [{"size": 3, "inner": {"names": ["d"]}}, {"size": 4, "inner": {"names": []}}],
}


def written(path: Path, schema: Any = SCHEMA, *, metadata: Any = None, **columns: Any) -> Path:
    table = pa.table(GOOD | columns, schema=schema).replace_schema_metadata(metadata)
    pq.write_table(table, path, row_group_size=1)
    return path


def rows(source: Any, **options: Any) -> list[dict[str, Any]]:
    return [row for batch in read_batches(source, SCHEMA, **options) for row in batch.to_pylist()]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "some.parquet"


def test_rows_come_back_from_a_file_and_from_a_stream(file: Path) -> None:
    expected = pa.table(GOOD, schema=SCHEMA).to_pylist()
    assert rows(written(file)) == expected
    assert rows(io.BytesIO(file.read_bytes())) == expected


@pytest.mark.parametrize("column", ["step", "name", "names"])
def test_a_null_is_damage_unless_the_column_may_have_some(file: Path, column: str) -> None:
    written(file, **{column: [GOOD[column][0], None]})
    with pytest.raises(RecordError, match=rf"some\.parquet: its column {column} has a null"):
        rows(file)
    assert rows(file, nullable=[column])[1][column] is None


def test_a_null_in_a_column_of_a_dictionary_is_damage(file: Path) -> None:
    encoded = pa.array(["a", None]).dictionary_encode()
    kinds = SCHEMA.set(1, pa.field("name", encoded.type))
    pq.write_table(pa.table(GOOD | {"name": encoded}, schema=kinds), file)
    with pytest.raises(RecordError, match="its column name has a null"):
        rows(file)
    assert [row["name"] for row in rows(file, nullable=["name"])] == ["a", None]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("names", ["c", None]),
        ("part", None),
        ("part", {"size": None, "inner": {"names": []}}),
        ("part", {"size": 1, "inner": None}),
        ("part", {"size": 1, "inner": {"names": [None]}}),
    ],
)
def test_a_null_within_a_list_or_a_struct_is_always_damage(file: Path, column: str, value: Any) -> None:
    written(file, **{column: [value, GOOD[column][1]]})
    with pytest.raises(RecordError, match=f"its column {column} has a null"):
        rows(file, nullable=[column])


def test_only_an_optional_column_may_be_missing_and_one_that_is_there_is_read(file: Path) -> None:
    pq.write_table(pq.read_table(written(file)).drop_columns(["name"]), file)
    with pytest.raises(RecordError, match="it has no single column name"):
        rows(file, optional=["names"])
    found = rows(file, optional=["name", "names"])
    assert [sorted(row) for row in found] == [["names", "part", "step"]] * 2
    assert [row["names"] for row in found] == GOOD["names"]


def test_two_columns_of_a_name_are_damage(file: Path) -> None:
    table = pa.table(GOOD, schema=SCHEMA)
    pq.write_table(table.append_column("step", table.column("step")), file)
    with pytest.raises(RecordError, match="it has no single column step"):
        rows(file, optional=["step"])


def test_a_column_of_another_type_is_damage_even_if_it_may_be_missing(file: Path) -> None:
    other = SCHEMA.set(0, pa.field("step", pa.string()))
    written(file, other, step=["1", "2"])
    with pytest.raises(RecordError, match="its column step is of type string, not int64"):
        rows(file, optional=["step"])


@pytest.mark.parametrize(
    ("metadata", "version", "said"),
    [
        ({"turnsmith.format": "2"}, "2", None),
        ({"turnsmith.format": "2"}, None, None),
        (None, None, None),
        ({"turnsmith.format": "3"}, "2", "it has format 3, but this turnsmith reads 2"),
        (None, "2", "it has format none, but this turnsmith reads 2"),
    ],
)
def test_the_format_must_be_the_one_that_is_asked_for(
    file: Path, metadata: Any, version: str | None, said: str | None
) -> None:
    written(file, metadata=metadata)
    if said is None:
        assert len(rows(file, version=version)) == 2
    else:
        with pytest.raises(RecordError, match=said):
            rows(file, version=version)


def test_row_groups_of_other_steps_are_left_out_if_their_statistics_tell(file: Path) -> None:
    written(file, step=[1, 2])
    assert [[row["step"] for row in rows(file, step=step)] for step in (0, 1, 2, 3)] == [[], [1], [2], []]
    pq.write_table(pa.table(GOOD, schema=SCHEMA), file)  # one row group
    assert [row["step"] for row in rows(file, step=2)] == [1, 2]
    pq.write_table(pa.table(GOOD, schema=SCHEMA), file, write_statistics=False)
    assert [row["step"] for row in rows(file, step=7)] == [1, 2]


def test_without_a_column_for_the_step_all_rows_are_read(file: Path) -> None:
    pq.write_table(pa.table(GOOD, schema=SCHEMA).drop_columns(["step"]), file)
    assert len(rows(file, optional=["step"], step=7)) == 2


def test_what_is_no_file_is_an_error_and_what_is_missing_is_not_damaged(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="is not a file"):
        rows(tmp_path)
    with pytest.raises(FileNotFoundError):
        rows(tmp_path / "none.parquet")
    with pytest.raises(RecordError, match="Cannot read the Parquet file it: "):
        rows(io.BytesIO(b"PAR1"))
