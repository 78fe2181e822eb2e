"""Damaged and ambiguous data files: each is read as it is written, or refused in a sentence, also by commands."""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from turnsmith.cli.main import main
from turnsmith.errors import ConfigError
from turnsmith.trainer.dataset import CustomEnvironmentDataset

DEEP = "[" * 100_000 + "]" * 100_000
REFUSED: list[tuple[str, str | bytes, str]] = [
    ("deep.jsonl", f'{{"a": {DEEP}}}\n', "Line 1 of .* is nested too deeply"),
    ("deep.json", DEEP, r"deep\.json is nested too deeply"),
    (
        "latin.jsonl",
        b'{"question": "a", "answer": "b"}\n{"question": "\xe9"}\n',
        "Line 2 of .* is not UTF-8: save the file as UTF-8",
    ),
    ("latin.json", b'[{"a": "\xff"}]', "is not JSON: .*utf-8"),
    ("latin.csv", b"question,answer\nx,1\n\xe9,2\n", "Line 3 of .* is not UTF-8: save the file as UTF-8"),
    (
        "half.jsonl",
        '{"question": "\\ud800", "answer": "1"}\n',
        r"Line 1 of .* half a character",
    ),
    ("empty-line.jsonl", '{"a": 1}\n\n{"a": 2}\n', "Line 2 of .* is not JSON"),
    ("long-number.jsonl", '{"a": ' + "9" * 5000 + "}\n", "Line 1 of .* is not JSON: Exceeds the limit"),
    ("large.jsonl", '{"a": 1}\n{"a": 1e400}\n', "Line 2 of .* is not JSON: 1e400 is too large a number"),
    ("twice.jsonl", '{"answer": "1", "answer": "2"}\n', "Line 1 of .* it has the key 'answer' twice"),
    ("rubbish.parquet", "PAR1" + "x" * 100 + "PAR1", r"rubbish\.parquet is no Parquet file, or is damaged"),
    ("empty.parquet", "", r"empty\.parquet is no Parquet file, or is damaged"),
    (
        "comma.csv",
        "question,answer\nok,1\nWhat is 1,000+1?,1001\n",
        "Line 3 of .* a row of 3 values, and there are 2 col",
    ),
    ("short.csv", "question,answer\n1+1\n", "Line 2 of .* a row of 1 values, and there are 2 columns"),
    ("return.csv", "question,answer\na\rb,2\n", "Line 2 of .* a row of 1 values"),
    (
        "open.csv",
        'question,answer\nok,1\n"1+1,2\n3+3,6\n',
        r"Line 3 of .* not CSV \(unexpected end of data\): close each",
    ),
    ("after.csv", 'question,answer\n"1"+1,2\n', r"Line 2 of .* not CSV"),
    ("headers.csv", "answer,question,answer\n1,2,3\n", "Line 1 of .* names the column 'answer' twice"),
    ("empty.csv", "", "The dataset is empty"),
    ("none.json", "[]", "The dataset is empty"),
    ("number.json", "[1]", "Row 0 of the dataset is '1', not a mapping"),
    ("upper.JSONL", '{"a": 1}\n', r"use a file that ends in \.jsonl"),
]


@pytest.mark.parametrize(("name", "content", "told"), REFUSED, ids=[case[0] for case in REFUSED])
def test_what_cannot_be_read_is_refused_with_its_line(tmp_path: Path, name: str, content: str | bytes, told: str):
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=told):
        CustomEnvironmentDataset(tasks=file)


@pytest.mark.parametrize(
    "name", ["deep.jsonl", "latin.jsonl", "half.jsonl", "rubbish.parquet", "comma.csv", "open.csv"]
)
def test_the_command_line_says_so_too(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str):
    ((_, content, told),) = [case for case in REFUSED if case[0] == name]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["play", "--data", str(tmp_path / name), "--output-dir", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert re.search(rf"^turnsmith: .*{told}", error)
    assert "Traceback" not in error


READ: list[tuple[str, str | bytes, list[dict[str, object]]]] = [
    ("mark.jsonl", b'\xef\xbb\xbf{"a": 1}\n', [{"a": 1}]),
    ("separators.jsonl", '{"a": "x\u2028y\x85z"}\n', [{"a": "x\u2028y\x85z"}]),
    ("returns.jsonl", '{"a": 1}\r{"a": 2}\r', [{"a": 1}, {"a": 2}]),
    ("lines.csv", 'a,b\n"1,\n2",3\n\n4,"say ""5"""\n', [{"a": "1,\n2", "b": "3"}, {"a": "4", "b": 'say "5"'}]),
    ("semicolons.csv", "a;b\n1;2\n", [{"a;b": "1;2"}]),
    ("pair.jsonl", '{"a": "\\ud83d\\ude00"}\n', [{"a": "\U0001f600"}]),
    ("null.csv", "a,b\nx\0y,2\n", [{"a": "x\0y", "b": "2"}]),
    ("formula.csv", "a,b\n=1+1,2\n", [{"a": "=1+1", "b": "2"}]),
]


@pytest.mark.parametrize(("name", "content", "rows"), READ, ids=[case[0] for case in READ])
def test_what_is_odd_but_clear_is_read(tmp_path: Path, name: str, content: str | bytes, rows: list[dict[str, object]]):
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    dataset = CustomEnvironmentDataset(tasks=file)
    assert [dataset.start(place)["task"] for place in range(len(dataset))] == rows


def test_half_a_character_in_rows_of_ones_own():
    with pytest.raises(ConfigError, match="Row 1 of the dataset has a text with half a character"):
        CustomEnvironmentDataset(tasks=[{"a": "x"}, {"a": "\ud800"}])


def test_parquet_columns(tmp_path: Path):
    column = pa.array([1])
    tables = {
        "twice": (pa.table([column, column], names=["answer", "answer"]), "the column 'answer' twice"),
        "bytes": (pa.table({"a": [b"\xff\xfe"]}), "Row 0 of the dataset has no JSON form"),
        "time": (pa.table({"a": [datetime(2026, 1, 1, tzinfo=UTC)]}), "Row 0 of the dataset has no JSON form"),
    }
    for name, (table, told) in tables.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
        with pytest.raises(ConfigError, match=told):
            CustomEnvironmentDataset(tasks=tmp_path / f"{name}.parquet")


def test_what_is_no_file_is_refused_at_once(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "endless.jsonl").symlink_to("/dev/zero")
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "file.jsonl").write_text(json.dumps({"a": 1}))
    for name in ("pipe.jsonl", "endless.jsonl", "folder.jsonl", "file.jsonl/inside.jsonl"):
        with pytest.raises(ConfigError):
            CustomEnvironmentDataset(tasks=tmp_path / name)
