"""Crash-safe files: whole files appear by an atomic rename, lines are appended under a lock.

What a function here has written survives a power failure once the function has returned, unless it says otherwise.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from turnsmith.errors import RecordError

_FULL = "Its disk is full: free some space, then `turnsmith resume` continues."
_FOREIGN = "It is read-only for you: another user owns it, or its disk is mounted read-only."
_ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _FULL),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), _FOREIGN),
}

Guard: TypeAlias = Callable[[], None]
"""Raises a RecordError if this process may not write to a folder any more."""
_guards: dict[Path, Guard] = {}


def guard(folder: Path, check: Guard) -> None:
    """Call `check` before each write to this folder or below it, instead of an earlier check of this folder."""
    _guards[folder] = check


def unguard(folder: Path, check: Guard) -> None:
    """Stop calling `check`, or a check that is equal to it."""
    if _guards.get(folder) == check:
        del _guards[folder]


def check_writable(path: Path) -> None:
    """Raise a RecordError if a guard says that this process may not write there any more."""
    for folder, check in list(_guards.items()):
        if path.is_relative_to(folder):
            check()


@contextmanager
def using(folder: Path) -> Generator[None]:
    """Raise a RecordError that says what to do if this block cannot read or write a folder.

    Example:
        >>> with using(Path("runs/chess")):
        ...     raise OSError(errno.ENOSPC, "No space left on device", "runs/chess/metrics.jsonl")
        Traceback (most recent call last):
        turnsmith.errors.RecordError: The run folder runs/chess cannot be used: No space left on device \
(runs/chess/metrics.jsonl). Its disk is full: free some space, then `turnsmith resume` continues.
    """
    try:
        yield
    except OSError as error:
        raise RecordError(f"The run folder {folder} cannot be used: {describe_os_error(error)}") from error


def describe_os_error(error: OSError) -> str:
    """What went wrong, with which file, and what to do."""
    file = f" ({error.filename})" if error.filename else ""
    return f"{error.strerror or error}{file}. {_ADVICE.get(error.errno or 0, '')}".rstrip()


@contextmanager
def atomic_write(path: Path) -> Generator[Path]:
    """Yield a temporary path to write to; rename it to `path` if the block succeeds, delete it if the block raises.

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
        check_writable(path)
        temporary.replace(path)
        flush_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a whole file atomically: readers see the old text or the new one."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_for_user(file: str | Path, text: str) -> Path:
    """Write a file where the user wants it, with its folders, and return its path.

    Raises:
        RecordError: It cannot be written there.
    """
    path = Path(file).expanduser()
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True)
        write_text(path, text)
    except OSError as error:
        raise RecordError(f"{path} cannot be written: {error.strerror or error}.") from error
    return path


def make_folder(path: Path) -> None:
    """Create a folder and its parents, if they do not exist."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        flush_folder(folder.parent)


def flush_folder(folder: Path) -> None:
    """Flush a folder's directory entries to disk, so that a rename survives a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot
            raise
    finally:
        os.close(descriptor)


def append_line(path: Path, line: str, *, flush: bool = True) -> None:
    """Append one line; if a crash left the last line unfinished, cut that line off first.

    With `flush=False` the line may be lost in a power failure, until `flush_file`.
    """
    check_writable(path)
    with path.open("a+b") as file:
        with suppress(OSError):  # Some network file systems have no locks; there, only one process may write.
            fcntl.flock(file, fcntl.LOCK_EX)
        size = os.fstat(file.fileno()).st_size
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
            file.truncate(path.read_bytes().rfind(b"\n") + 1)
        file.write(line.encode() + b"\n")
        if flush:
            file.flush()
            os.fsync(file.fileno())
    if flush and not size:
        flush_folder(path.parent)


def flush_file(path: Path) -> None:
    """Flush a file to disk, if it exists."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        os.fsync(file.fileno())


def remove_temporary(folder: Path) -> None:
    """Delete what killed calls of `atomic_write` left in a folder and in its subfolders."""
    for leftover in (*folder.glob(".*.tmp"), *folder.glob("*/.*.tmp")):
        leftover.unlink(missing_ok=True)


def read_file(path: Path) -> bytes:
    """The content of a regular file; empty if there is none.

    Raises:
        RecordError: It cannot be read, or is not a file but, for example, a pipe.
    """
    try:
        if not path.exists():
            return b""
        if not path.is_file():
            raise RecordError(f"{path} is not a file.")
        return path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror or error}.") from error


def existing_parent(folder: Path) -> Path:
    """The folder, or the first one above it that exists."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())


def why_not_writable(folder: Path) -> str:
    """Why no file can be written to a folder, or where it would be created; empty if one can."""
    try:
        with tempfile.TemporaryFile(dir=existing_parent(folder)):
            return ""
    except OSError as error:
        return error.strerror or str(error)
