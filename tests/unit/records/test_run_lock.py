"""Only one process at a time may hold the lock of a run."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from turnsmith.errors import RecordError
from turnsmith.records.run_lock import lock_run


def test_a_lock_that_is_held_is_refused_after_the_wait(tmp_path: Path) -> None:
    with lock_run(tmp_path, 0):
        began, worked = time.monotonic(), time.process_time()
        with pytest.raises(RecordError, match="is in use: another process is training in it"):
            lock_run(tmp_path, 0.3)
        assert 0.3 <= time.monotonic() - began < 20
        assert time.process_time() - worked < 0.15, "it waits without working"


def test_a_lock_that_is_released_in_time_is_taken(tmp_path: Path) -> None:
    held = lock_run(tmp_path, 0)
    threading.Timer(0.3, held.close).start()
    with lock_run(tmp_path, 30):
        assert held.closed


def test_closing_releases_the_lock(tmp_path: Path) -> None:
    lock_run(tmp_path, 0).close()
    lock_run(tmp_path, 0).close()
