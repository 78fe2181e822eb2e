"""Finds the processes of a run that a test started, its workers and theirs included."""

from __future__ import annotations

import psutil


def processes_with(mark: str) -> list[psutil.Process]:
    """All processes that inherited `TURNSMITH_TEST_MARK`, with this value."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TURNSMITH_TEST_MARK") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.AccessDenied, psutil.NoSuchProcess):
            continue
    return found
