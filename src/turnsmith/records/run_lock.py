"""One writer for a run: the process that rewinds its folder, and the processes that it starts to write there.

`run.lock` names the process that holds the run, with a token that only its own processes know. They hold the file
locked, and look at the token before each write. So a second writer is refused, or notices it at its next write, also
where the file system has no locks or only those of one host, and after somebody has removed or replaced the file.
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
"""Written in one call, always as many, so that no reader sees a part of it."""
_POLL_SECONDS = 0.1
_SETTLE_SECONDS = 0.05
"""Without locks, whoever took the run at the same time, or was about to write to it, has done so after this time."""
_SHARE_SECONDS = 10.0
_ENDING_SECONDS = 5.0
"""For a process that was just killed to be gone."""


@dataclass(frozen=True)
class _Guard:
    folder: Path
    token: str

    def __call__(self) -> None:
        check_holder(self.folder, self.token)


class RunLock:
    """A run that this process holds, or writes to for the process that holds it. Closed with `release`, or by dying."""

    def __init__(self, folder: Path, token: str, descriptor: int, *, is_holder: bool) -> None:
        self.folder, self.token = folder, token
        write_for(folder, token)
        holder = os.getpid() if is_holder else 0
        self.release = weakref.finalize(self, _release, folder, token, descriptor, holder)
        """Let go of the run. Safe to call twice; called by itself when this object or the process ends."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def claim_run(folder: Path, wait_seconds: float) -> RunLock:
    """Take a run for this process and those that it starts.

    After a run is killed, some of its processes end only seconds later; until then they may still write.

    Raises:
        RecordError: Another process holds the run, or still writes to it after `wait_seconds`.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with claim_run(folder, wait_seconds=0):
        ...     claim_run(folder, wait_seconds=0)
        Traceback (most recent call last):
        turnsmith.errors.RecordError: ... is in use: this process itself has it since ... Call cleanup() of ...
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
    """Write to a run for the process that has claimed it; until this process ends, no other can claim it.

    Raises:
        RecordError: It is not held with this token any more.
    """
    check_holder(folder, token)
    descriptor = os.open(folder / _NAME, os.O_RDWR | os.O_CLOEXEC)
    _share(descriptor)
    return RunLock(folder, token, descriptor, is_holder=False)


def write_for(folder: Path, token: str) -> None:
    """Have every write of this process in the folder fail once the run is not held with this token any more."""
    files.guard(folder, _Guard(folder, token))


def check_holder(folder: Path, token: str) -> None:
    """Raise a RecordError unless the run is held with this token."""
    holder = _read(folder / _NAME)
    if holder is not None and holder.get("token") == token:
        return
    if holder:
        whom, since = _described(holder)
        what = f"{whom} took it over at {since}, so this one no longer writes to it."
    else:
        gone = "removed" if holder is None else "replaced"
        what = f"{_NAME} was {gone} while this one wrote to it, so that another one can: this one stops."
    raise RecordError(f"{folder} does not belong to this process any more: {what}")


def _claim(path: Path, descriptor: int) -> tuple[str, str]:
    """The token, if the run could be claimed; else why not, if it is known."""
    locked = _lock(descriptor, fcntl.LOCK_EX)
    if not _is_same(path, descriptor):
        return "", ""  # it was removed or replaced since it was opened
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
    """Why nobody else can have the run: its holder is alive on this machine, or nothing tells whether it is."""
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
    """Whether the file could be locked; None: its file system has no locks."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _share(descriptor: int) -> None:
    """Hold the lock together with the other processes of this run, once those who looked at it have let go of it."""
    until = time.monotonic() + _SHARE_SECONDS
    while _lock(descriptor, fcntl.LOCK_SH) is False and time.monotonic() < until:
        time.sleep(_SETTLE_SECONDS)


def _release(folder: Path, token: str, descriptor: int, holder: int) -> None:
    files.unguard(folder, _Guard(folder, token))
    with suppress(OSError):
        holds = _parsed(os.pread(descriptor, _BYTES, 0)).get("token") == token
        if holds and holder == os.getpid():  # a forked child ends without letting go of it
            os.pwrite(descriptor, b" " * _BYTES, 0)
    os.close(descriptor)


def _read(path: Path) -> dict[str, Any] | None:
    """Who holds a run; empty: nobody, None: the file is not there."""
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
        return f"this process itself has it since {since}. Call cleanup() of the trainer that has it first."
    return f"{whom} has trained in it since {since}. Stop that process first."


def _still_written(path: Path) -> str:
    holder = _read(path)
    whom = f"that {_described(holder)[0]} started" if holder else "whose name is not known"
    return f"a process {whom} still writes to it. Wait for its end, or stop it."
