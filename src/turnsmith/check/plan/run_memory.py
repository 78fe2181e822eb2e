"""Memory, by kind, and CPU time of a run's processes.

Counted is what a process has written to and shares with no other. Pages of files, such as libraries, are not: the
kernel drops them when memory is short.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import psutil

KINDS = {
    "WorkerDict": "trainer rank",
    "TransformersServer": "rollout server",
    "VllmServer": "rollout server",
    "VLLM::": "rollout server",
    "TaskRunner": "task runner",
    "EpisodeWorker": "episode worker",
    "TransferQueue": "data queue",
    "StorageUnit": "data queue",
    "CheckpointEngine": "weight receiver",
    "turnsmith.env.isolation.worker": "environment workers",
}
"""A part of the command line of a process, and what it is. All others are `other`: your script and Ray's own."""


def process_kind(command: Sequence[str]) -> str:
    """What a process is, by its command line.

    Example:
        >>> process_kind(["ray::WorkerDict.actor_rollout_update_actor"]), process_kind(["python", "train.py"])
        ('trainer rank', 'other')
        >>> process_kind(["ray::VllmServer.generate"]), process_kind(["VLLM::EngineCore"])
        ('rollout server', 'rollout server')
    """
    text = " ".join(command)
    return next((kind for part, kind in KINDS.items() if part in text), "other")


def private_bytes(pid: int | str = "self") -> int:
    """What a process has written to and shares with no other."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    return 1024 * sum(int(kilobytes) for kilobytes in re.findall(r"^(?:Private_Dirty|Swap): +(\d+) kB", text, re.M))


def run_memory(process: psutil.Process) -> Counter[str]:
    """Bytes of each kind of process, of a process and all that it has started."""
    found = Counter[str]()
    for one in [process, *process.children(recursive=True)]:
        try:
            found[process_kind(one.cmdline())] += private_bytes(one.pid)
        except (psutil.Error, OSError):
            continue  # it has just ended
    return found


def cpu_seconds(process: psutil.Process) -> float:
    """CPU time so far of a process and all that it has started and that still run."""
    total = 0.0
    for one in [process, *process.children(recursive=True)]:
        try:
            total += sum(one.cpu_times()[:2])
        except psutil.Error:
            continue
    return total


class RunWatch:
    """Samples the memory and the CPU time of a process and all that it has started, in a thread.

    Example:
        >>> with RunWatch(every=0.1) as watch:
        ...     pass
        >>> watch.total >= watch.peaks["other"] > 0
        True
    """

    def __init__(self, process: psutil.Process | None = None, every: float = 0.4) -> None:
        self._every = every
        self.peaks = Counter[str]()
        """The most bytes of each kind of process."""
        self.total = 0
        """The most bytes of all at the same time."""
        self.cpu: list[tuple[float, float]] = []
        """Times, in seconds since 1970, and the CPU time until then."""
        self._process = process or psutil.Process()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_ended, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def cpu_between(self, begin: float, end: float) -> float:
        """CPU time between two times."""
        times, spent = zip(*self.cpu, strict=True)
        return float(np.interp(end, times, spent) - np.interp(begin, times, spent))

    def _sample_until_ended(self) -> None:
        while True:
            try:
                self.cpu.append((time.time(), cpu_seconds(self._process)))
                now = run_memory(self._process)
            except psutil.Error:
                return  # it has ended
            self.peaks |= now
            self.total = max(self.total, now.total())
            if self._ended.wait(self._every):
                return
