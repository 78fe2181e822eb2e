"""One writer at a time: who writes to a run folder holds its lock, and a killed process lets go of it."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path
from typing import IO

from turnsmith.errors import RecordError

_NAME = "run.lock"
_LOOK_SECONDS = 0.1


def lock_run(folder: Path, wait_seconds: float) -> IO[bytes]:
    """Wait for the lock of a run and take it; closing what is returned, or dying, lets go of it.

    A run that was killed has processes that only end some seconds later; until then they may still write.

    Raises:
        RecordError: Somebody else holds it all that time.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with lock_run(folder, wait_seconds=0):
        ...     lock_run(folder, wait_seconds=0)
        Traceback (most recent call last):
        turnsmith.errors.RecordError: ... is still being written to: another process trains in it. Stop that one first.
    """
    until = time.monotonic() + wait_seconds
    file = (folder / _NAME).open("ab")
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < until:
                time.sleep(_LOOK_SECONDS)
                continue
            file.close()
            raise RecordError(
                f"{folder} is still being written to: another process trains in it. Stop that one first."
            ) from None
        except OSError:  # a file system that has no locks
            pass
        return file
