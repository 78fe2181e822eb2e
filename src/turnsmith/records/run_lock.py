"""One writer for a run: the process that rewinds its folder, and the processes that it starts to write there.

`run.lock` names the process that holds the run, and a token that only its own processes know. They keep the file
locked and read the token before each write. So a second process is refused, or the one that lost the run stops at its
next write. The latter also works without locks across hosts, and after the file was removed or replaced.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import secrets
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from turnsmith.errors import RecordError
from turnsmith.records import files
from turnsmith.records.run_state import is_alive, this_process

_NAME = "run.lock"
_BYTES = 1024
"""The file always has this size and is written in one call, so that no reader sees a part of it."""
_POLL_SECONDS = 0.1
_SETTLE_SECONDS = 0.05
"""Without locks, a process that claims or writes the file at the same moment has done so after this time."""
_SHARE_SECONDS = 10.0
_ENDING_SECONDS = 5.0
"""How long a killed process may take to end."""


@dataclass(frozen=True)
class _Guard:
    folder: Path
    token: str

    def __call__(self) -> None:
        check_holder(self.folder, self.token)


class RunLock:
    """A run that this process holds, or writes to for the process that holds it. Ends with `release` or the process."""

    def __init__(self, folder: Path, token: str, descriptor: int, *, is_holder: bool) -> None:
        self.folder, self.token = folder, token
        write_for(folder, token)
        holder = os.getpid() if is_holder else 0
        self.release = weakref.finalize(self, _release, folder, token, descriptor, holder)
        """Release the run. Safe to call twice; also called when this object or the process ends."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def claim_run(folder: Path, wait_seconds: float) -> RunLock:
    """Claim a run for this process and those that it starts.

    After a run is killed, some of its processes end only seconds later; until then they may still write.

    Raises:
        RecordError: Another process holds the run, or still writes to it after `wait_seconds`.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with claim_run(folder, wait_seconds=0):
        ...     claim_run(folder, wait_seconds=0)
        Traceback (most recent call last):
        turnsmith.errors.RecordError: ... is in use: this process has held it since ... Call cleanup() of ...
    """
    began = time.monotonic()
    while True:
        descriptor = os.open(folder / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        token, problem = "", ""
        try:
            token, problem = _claim(folder / _NAME, descriptor)
        finally:
            if not token:
                os.close(descriptor)
        if token:
            return RunLock(folder, token, descriptor, is_holder=True)
        patience = min(wait_seconds, _ENDING_SECONDS) if problem else wait_seconds
        if time.monotonic() - began > patience:
            raise RecordError(f"{folder} is in use: {problem or _still_written(folder / _NAME)}")
        time.sleep(_POLL_SECONDS)


def join_run(folder: Path, token: str) -> RunLock:
    """Write to a run for the process that holds it. No other process can claim the run until this one ends.

    Raises:
        RecordError: It is no longer held with this token.
    """
    check_holder(folder, token)
    descriptor = os.open(folder / _NAME, os.O_RDWR | os.O_CLOEXEC)
    _share(descriptor)
    return RunLock(folder, token, descriptor, is_holder=False)


def write_for(folder: Path, token: str) -> None:
    """Make all writes of this process to the folder fail once the run is no longer held with this token."""
    files.guard(folder, _Guard(folder, token))


def check_holder(folder: Path, token: str) -> None:
    """Raise a RecordError unless the run is held with this token."""
    holder = _read(folder / _NAME)
    if holder is not None and holder.get("token") == token:
        return
    if holder:
        whom, since = _described(holder)
        what = f"{whom} took it over at {since}, so this process no longer writes to it."
    else:
        gone = "removed" if holder is None else "replaced"
        what = f"{_NAME} was {gone} while this process wrote to it, so that another one can: this one stops."
    raise RecordError(f"{folder} no longer belongs to this process: {what}")


def _claim(path: Path, descriptor: int) -> tuple[str, str]:
    """The token if the run was claimed, else the reason why not, if it is known."""
    locked = _lock(descriptor, fcntl.LOCK_EX)
    if not _is_same(path, descriptor):
        return "", ""  # the file was removed or replaced since it was opened
    holder = _parsed(os.pread(descriptor, _BYTES, 0))
    if problem := _why_held(holder, path, has_locks=locked is not None):
        return "", problem
    if locked is False:
        return "", ""
    token = secrets.token_hex(8)
    record = json.dumps({"token": token, "since": time.time(), **this_process()})
    os.pwrite(descriptor, record.encode().ljust(_BYTES), 0)
    os.fsync(descriptor)
    _share(descriptor)
    time.sleep(_SETTLE_SECONDS)
    holder = _read(path) or {}
    return (token, "") if holder.get("token") == token else ("", _in_use(holder))


def _why_held(holder: Mapping[str, Any], path: Path, *, has_locks: bool) -> str:
    """Why the run cannot be claimed: its holder is alive, or may be alive on another machine."""
    is_here = holder.get("host") == platform.node()
    if not holder or (is_here and not is_alive(holder)) or (not is_here and has_locks):
        return ""
    if is_here:
        return _in_use(holder)
    whom, since = _described(holder)
    return (
        f"{whom} took it at {since}, and its file system has no locks that tell whether that process still runs. If it "
        f"does not, delete {path}."
    )


def _lock(descriptor: int, kind: int) -> bool | None:
    """Whether the file could be locked; None if its file system has no locks."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _share(descriptor: int) -> None:
    """Share the lock with the other processes of this run, once processes that tested it have released it."""
    until = time.monotonic() + _SHARE_SECONDS
    while _lock(descriptor, fcntl.LOCK_SH) is False and time.monotonic() < until:
        time.sleep(_SETTLE_SECONDS)


def _release(folder: Path, token: str, descriptor: int, holder: int) -> None:
    files.unguard(folder, _Guard(folder, token))
    with suppress(OSError):
        holds = _parsed(os.pread(descriptor, _BYTES, 0)).get("token") == token
        if holds and holder == os.getpid():  # a forked child does not release the run
            os.pwrite(descriptor, b" " * _BYTES, 0)
    os.close(descriptor)


def _read(path: Path) -> dict[str, Any] | None:
    """The holder of a run; empty if there is none, None if there is no file."""
    try:
        return _parsed(path.read_bytes())
    except FileNotFoundError:
        return None


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        holder = json.loads(content)
        time.localtime(float(holder["since"]))
        return {**holder, "pid": int(holder["pid"]), "since": float(holder["since"])}
    except (ValueError, TypeError, KeyError, OverflowError, OSError, RecursionError):
        return {}


def _is_same(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _described(holder: Mapping[str, Any]) -> tuple[str, str]:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder["since"]))
    return f"process {holder['pid']} on {holder.get('host')}", since


def _in_use(holder: Mapping[str, Any]) -> str:
    if not holder:
        return ""
    whom, since = _described(holder)
    if holder["pid"] == os.getpid():
        return f"this process has held it since {since}. Call cleanup() of the trainer that holds it first."
    return f"{whom} has trained in it since {since}. Stop that process first."


def _still_written(path: Path) -> str:
    holder = _read(path)
    writer = f"a process that {_described(holder)[0]} started" if holder else "an unknown process"
    return f"{writer} still writes to it. Wait until that process ends, or stop it."
