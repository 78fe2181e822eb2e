"""Files that are never seen half-written: whole ones appear by rename, lines are appended under a lock."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from turnsmith.errors import RecordError


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """A path beside `path` to write to; it becomes `path` when the block ends well, and goes away when it does not.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "note.txt"
        >>> with replacing(target) as beside:
        ...     _ = beside.write_text("whole")
        >>> target.read_text()
        'whole'
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield beside
        with beside.open("rb") as written:
            os.fsync(written.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a whole file, so that a reader sees the old text or the new one."""
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")


def append_line(path: Path, line: str) -> None:
    """Append one line. A last line that a crash left unfinished is cut off first, so that it can't spoil this one."""
    with path.open("a+b") as file:
        with suppress(OSError):  # Some network file systems have no locks; then one writer at a time must do.
            fcntl.flock(file, fcntl.LOCK_EX)
        size = file.seek(0, os.SEEK_END)
        if size and not _ends_a_line(file.fileno(), size):
            file.truncate(_end_of_last_line(file.fileno(), size))
        file.write(line.encode() + b"\n")


def _ends_a_line(descriptor: int, size: int) -> bool:
    return os.pread(descriptor, 1, size - 1) == b"\n"


def _end_of_last_line(descriptor: int, size: int) -> int:
    block = 1 << 16
    while size > 0:
        start = max(0, size - block)
        found = os.pread(descriptor, size - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        size = start
    return 0


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """All records of a JSON-lines file, none if it is not there. A torn last line, as a crash leaves it, is left out.

    Raises:
        RecordError: A line that is not the last one is damaged.
    """
    if not path.exists():
        return []
    *lines, torn = path.read_bytes().split(b"\n")
    del torn  # Empty, unless the writer was cut off in it.
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            raise RecordError(f"Line {number} of {path} is damaged: it is not JSON.") from None
        if not isinstance(record, dict):
            raise RecordError(f"Line {number} of {path} is damaged: it is not a record.")
        records.append(cast("dict[str, Any]", record))
    return records
