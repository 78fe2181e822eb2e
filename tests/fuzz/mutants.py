"""Inputs for the readers that are nearly right: valid JSON, Parquet and messages with the wrong contents.

A fuzzer that changes bytes mostly breaks the syntax, which is refused at once; these get further. Each function makes
one input for the target of its name in `tests.fuzz.readers`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tests.fuzz.readers import CORPUS, FILES, sample_files

VALUES: list[Any] = [None, True, "x", "", -1, 0, 7, 2**31, 2**53 + 1, 10**30, 10**400, 0.5, 1e308, -1e308, 5e-324]
VALUES += ["NaN", "Infinity", "-Infinity", float("nan"), float("inf"), [], [1], {}, {"a": 1}, [[["x"]]], "\ud800"]
VALUES += ["\x1b]0;pwned\x07\u202e\n", "<script>", [["a", 1, 2.0]], [[]], 1e300, 253402300800]
NAMES = ["step", "kind", "warning", "content", "time/step", "episodes/total", "tools/calls", "reward/mean", "eval/x"]
NAMES += ["training", "failed", "evaluation", "finished", "resumed", "pid", "host", "until", "advantage/min", "pass@2"]


@cache
def _records() -> list[list[Any]]:
    return [[json.loads(line) for line in sample_files()[name].splitlines()] for name in FILES[:-1]]


def files(rng: random.Random) -> bytes:
    """A file of a run in which one to three values are others, gone, or where they should not be."""
    place = rng.randrange(len(FILES) - 1)
    lines = list(_records()[place])
    for _ in range(rng.choice((1, 1, 2, 3))):
        line = rng.randrange(len(lines))
        lines[line] = _changed(lines[line], rng)
    text = "\n".join(json.dumps(line) for line in lines) + "\n"
    return bytes([place]) + text.encode("utf-8", "surrogatepass")


def _changed(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name = rng.choice([*value, *NAMES] if rng.random() < 0.2 else list(value))
        if rng.random() < 0.1:
            return {key: item for key, item in value.items() if key != name}
        return {**value, name: _changed(value.get(name), rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        place = rng.randrange(len(value))
        return [*value[:place], _changed(value[place], rng), *value[place + rng.randrange(2) :]]
    return rng.choice([*VALUES, *NAMES])


@cache
def _table() -> Any:
    return pq.read_table(CORPUS / "parquet" / "episodes")


def parquet(rng: random.Random) -> bytes:
    """An episode file in which one or two columns are gone, twice there, null, of another type, or of other values."""
    table, metadata = _table(), _table().schema.metadata
    for _ in range(rng.choice((1, 1, 2))):
        place = rng.randrange(table.num_columns)
        name, kind = table.column_names[place], table.schema.field(place).type
        change = rng.randrange(5)
        if change == 0:
            table = table.remove_column(place)
        elif change == 1:
            table = table.set_column(place, name, pa.nulls(len(table), kind))
        elif change == 2:
            table = table.append_column(name, table.column(place))
        else:
            try:
                values = [_other(kind if change == 3 else None, rng) for _ in range(len(table))]
                table = table.set_column(place, name, pa.array(values, kind if change == 3 else None))
            except (pa.ArrowException, OverflowError, ValueError, TypeError):
                continue
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(metadata), sink, compression="none")
    return sink.getvalue().to_pybytes()


def _other(kind: Any, rng: random.Random) -> Any:
    """A value of a type, or of any."""
    if kind is None:
        return rng.choice([None, 3, "x", 1.5, [1], b"\xff", {"a": 1}, True])
    if pa.types.is_list(kind):
        return [_other(kind.value_type, rng) for _ in range(rng.randrange(4))]
    if pa.types.is_struct(kind):
        return {field.name: _other(field.type, rng) for field in kind}
    if pa.types.is_boolean(kind):
        return rng.choice([True, False, None])
    if pa.types.is_integer(kind):
        return rng.choice([0, 1, 2, 3, -5, 2**31 - 1, -(2**31), None])
    if pa.types.is_floating(kind):
        return rng.choice([0.0, -1.5, float("nan"), float("inf"), 1e308, -1e308, 1e99, None])
    return rng.choice(["", "weird", "{", "[]", "{}", "[1]", "[{}]", '{"a":1}', "[" * 5000, "completed", "kept", None])


def frames(rng: random.Random) -> bytes:
    """Messages of the right tags and lengths, with fields of any type."""
    out = b""
    for _ in range(rng.choice((1, 1, 2, 5))):
        tag = rng.choice([*range(1, 9), *range(20, 28), 99])
        message = msgspec.msgpack.encode([tag, *(_packed(rng, 3) for _ in range(rng.randrange(9)))])
        if rng.random() < 0.1:
            message = b"\x95\x02\x01\x07\x01" + b"\x91" * rng.choice((10, 3000)) + message
        out += (len(message) + rng.choice((0, 0, 0, 0, -1, 1, 2**31))).to_bytes(4, "little", signed=False) + message
    return out


def session(rng: random.Random) -> bytes:
    """Lines for an environment server, of the right form with any values in it."""
    lines: list[bytes] = []
    for _ in range(rng.randrange(1, 6)):
        names = rng.sample(["seed", "episode_id", "text", "type", "tool_name", "arguments", "method", "id"], 3)
        data = {name: _packed(rng, 2) for name in names} | rng.choice([{}, {"type": "call_tool"}, {"text": "8"}])
        kind = rng.choice(["reset", "step", "step", "mcp", "state", "close", "", 3])
        lines.append(msgspec.json.encode({"type": kind, "data": rng.choice([data, data, data, [], None])}))
    return b"\n".join([b'{"type": "reset"}', *lines] if rng.random() < 0.5 else lines)


def _packed(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(9 if depth else 7)
    if kind == 0:
        return rng.choice([0, 1, 7, -1, 2**31, 2**63 - 1, -(2**63)])
    if kind < 3:
        return rng.choice(["", "GuessNumber", "8", "{}", "[" * 2000, "environment:The"])
    if kind == 3:
        return rng.choice([0.5, float("nan"), float("inf"), 1e308])
    if kind == 4:
        return rng.choice([True, False, None])
    if kind == 5:
        return rng.randbytes(rng.randrange(5))
    if kind == 6:
        return rng.choice([1, 7])
    if kind == 7:
        return [_packed(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {rng.choice(["a", "max_steps", "isolation"]): _packed(rng, depth - 1) for _ in range(rng.randrange(3))}


MAKERS: dict[str, Callable[[random.Random], bytes]] = {
    "files": files,
    "parquet": parquet,
    "frames": frames,
    "session": session,
}


def changed_bytes(data: bytes, rng: random.Random) -> bytes:
    """The same with a few bytes changed, added or cut off."""
    content = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        place = rng.randrange(len(content) + 1)
        content[place : place + rng.choice((0, 1, 1, 4))] = rng.randbytes(rng.choice((0, 1, 1, 4)))
    return bytes(content[: rng.randrange(len(content) + 1)] if rng.random() < 0.1 else content)
