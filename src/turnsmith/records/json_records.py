"""Reads the JSON files of a run folder: parsed strictly, and checked before anything else sees them.

A run folder may be somebody else's, or damaged. The returned records have the fields below with these types, and only
text that UTF-8 can encode. Other fields, as of a newer version, stay as they are.
"""

from __future__ import annotations

from typing import Annotated, Any, Required, TypeAlias, TypedDict, cast

import msgspec
import orjson

from turnsmith.errors import RecordError

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Time: TypeAlias = Annotated[float, msgspec.Meta(ge=0, lt=253402300800)]  # to the end of the year 9999
_Pid: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_Attempts: TypeAlias = Annotated[list[tuple[str, Count, float]], msgspec.Meta(min_length=1)]


class About(TypedDict, total=False):
    """`run.json`."""

    format: Required[Count]
    created: _Time | None


class Metrics(TypedDict):
    """A line of `metrics.jsonl` or `evaluations.jsonl`; the metrics themselves are any further fields."""

    step: Count


class LedgerEpisode(TypedDict, total=False):
    """An episode in a line of `ledger.jsonl`."""

    episode: Required[str]
    decision: Required[str]
    attempts: Required[_Attempts]
    error: str


class LedgerStep(TypedDict, total=False):
    """A line of `ledger.jsonl`."""

    step: Required[Count]
    dispatched: Count
    carried_in: Count
    trained: Count
    masked: Count
    dropped: Count
    filtered: Count
    carried: list[str]
    decisions: dict[str, Count]
    outcomes: dict[str, Count]
    given_up: dict[str, Count]
    tokens: dict[str, Count]
    episodes: list[LedgerEpisode]
    files: dict[str, str]
    key: str
    signature: str


class Event(TypedDict, total=False):
    """A line of `events.jsonl`."""

    kind: Required[str]
    time: float
    step: Count | None
    pid: _Pid
    born: Count | None


class ResumeFile(TypedDict, total=False):
    """The fields of `resume.json` for all readers."""

    steps: Count
    environment: str | None
    nameless: dict[str, str]


def parse_object(data: bytes, shape: type, where: str) -> dict[str, Any]:
    """Parse a file that holds one JSON object; `where` is the file, for the error.

    Raises:
        RecordError: It is not JSON, or a field has the wrong type.

    Example:
        >>> parse_object(b'{"format": 1, "name": "game"}', About, "run.json")
        {'format': 1, 'name': 'game'}
        >>> parse_object(b'{"format": "one"}', About, "run.json")
        Traceback (most recent call last):
        turnsmith.errors.RecordError: run.json is damaged: Expected `int`, got `str` - at `$.format`.
    """
    try:
        value = orjson.loads(data)
        msgspec.convert(value, shape)
    except orjson.JSONDecodeError:
        raise RecordError(f"{where} is damaged: it is not JSON.") from None
    except (msgspec.ValidationError, RecursionError) as error:
        raise RecordError(f"{where} is damaged: {error}.") from None
    return cast("dict[str, Any]", value)


def parse_lines(data: bytes, shape: type, where: str, *, skip_damaged: bool = False) -> list[dict[str, Any]]:
    """Parse a file with one JSON object per line. An unfinished last line is left out.

    Args:
        data: The file's content.
        shape: The fields of each line.
        where: The file, for the error.
        skip_damaged: Leave out damaged lines, too.

    Raises:
        RecordError: A line other than the last is damaged.

    Example:
        >>> parse_lines(b'{"step": 1, "entropy": 2.5}\\n{"step": 2, "ent', Metrics, "metrics.jsonl")
        [{'step': 1, 'entropy': 2.5}]
    """
    *lines, _ = data.split(b"\n")  # the last part is empty or unfinished
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(parse_object(line, shape, f"Line {number} of {where}"))
        except RecordError:
            if not skip_damaged:
                raise
    return records
