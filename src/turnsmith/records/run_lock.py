"""One writer at a time: the process that writes to a run folder holds its lock, and loses it when it dies."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path
from typing import IO

from turnsmith.errors import RecordError

_NAME = "run.lock"
_POLL_SECONDS = 0.1


def lock_run(folder: Path, wait_seconds: float) -> IO[bytes]:
    """Wait for the lock of a run and take it; closing the returned file, or dying, releases it.

    After a run is killed, some of its processes end only seconds later; until then they may still write.

    Raises:
        RecordError: Another process held the lock for all of `wait_seconds`.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with lock_run(folder, wait_seconds=0):
        ...     lock_run(folder, wait_seconds=0)
        Traceback (most recent call last):
        turnsmith.errors.RecordError: ... is in use: another process is training in it. Stop that process first.
    """
    deadline = time.monotonic() + wait_seconds
    file = (folder / _NAME).open("ab")
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
                continue
            file.close()
            raise RecordError(
                f"{folder} is in use: another process is training in it. Stop that process first."
            ) from None
        except OSError:  # The file system has no locks.
            pass
        return file
