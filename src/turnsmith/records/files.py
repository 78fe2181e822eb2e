"""Crash-safe files: whole files appear by an atomic rename, lines are appended under a lock."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

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


def read_file(path: Path) -> bytes:
    """The content of a regular file; empty if there is none.

    Raises:
        RecordError: It cannot be read, or is no file: a pipe, say, which nobody may ever write to.
    """
    try:
        if not path.exists():
            return b""
        if not path.is_file():
            raise RecordError(f"{path} is not a file.")
        return path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror or error}.") from error
