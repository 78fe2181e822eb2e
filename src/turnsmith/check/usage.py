"""What this process and those that it started hold at the moment: processes, threads, open files."""

from __future__ import annotations

import gc
import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts over this process and all below it.

    Example:
        >>> Usage.now().processes >= 1
        True
    """

    processes: int
    threads: int
    files: int

    @classmethod
    def now(cls) -> Usage:
        """Count. What this process has forgotten but not yet freed is freed first."""
        gc.collect()
        if sys.platform != "linux":  # no /proc: processes that this one started are not counted
            return cls(1, threading.active_count(), sum(1 for _ in Path("/dev/fd").iterdir()))
        processes = _family(os.getpid())
        threads = sum(_entries(process, "task") for process in processes)
        return cls(len(processes), threads, sum(_entries(process, "fd") for process in processes))

    def grown(self, before: Usage) -> dict[str, int]:
        """By how much each count has grown."""
        names = {"processes": "processes", "threads": "threads", "open files": "files"}
        return {label: getattr(self, name) - getattr(before, name) for label, name in names.items()}


def _family(root: int) -> list[int]:
    """A process and all below it; those that have ended but were never waited for are among them."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                # The name before the last bracket may contain anything.
                parent = int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, left = list[int](), [root]
    while left:
        process = left.pop()
        found.append(process)
        left += children.get(process, [])
    return found


def _entries(process: int, folder: str) -> int:
    try:
        return sum(1 for _ in (_PROC / str(process) / folder).iterdir())
    except OSError:
        return 0
