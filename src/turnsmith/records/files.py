"""Crash-safe files: whole files appear by an atomic rename, lines are appended under a lock."""

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
def atomic_write(path: Path) -> Generator[Path]:
    """Give a temporary path to write to; rename it to `path` if the block succeeds, delete it if the block raises.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "note.txt"
        >>> with atomic_write(target) as temporary:
        ...     _ = temporary.write_text("whole")
        >>> target.read_text()
        'whole'
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a whole file atomically: readers see the old text or the new one."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def flush_folder(folder: Path) -> None:
    """Flush a folder's directory entries to disk, so that a rename survives a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append_line(path: Path, line: str) -> None:
    """Append one line; if a crash left the last line unfinished, cut that line off first."""
    with path.open("a+b") as file:
        with suppress(OSError):  # Some network file systems have no locks; there, only one process may write.
            fcntl.flock(file, fcntl.LOCK_EX)
        size = os.fstat(file.fileno()).st_size
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
            file.truncate(path.read_bytes().rfind(b"\n") + 1)
        file.write(line.encode() + b"\n")


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """All records of a JSON-lines file; none if it does not exist. An unfinished last line is left out.

    Raises:
        RecordError: A line other than the last is damaged.
    """
    if not path.exists():
        return []
    *lines, _ = path.read_bytes().split(b"\n")  # After the last line end comes nothing, or an unfinished line.
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            raise RecordError(f"Line {number} of {path} is damaged: it is not JSON.") from None
        if not isinstance(record, dict):
            raise RecordError(f"Line {number} of {path} is damaged: it is not a JSON object.")
        records.append(cast("dict[str, Any]", record))
    return records
