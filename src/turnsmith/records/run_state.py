"""Whether a run is still going, and how it ended, from its events and, on the same host, its process."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

_QUIET_SECONDS = 900
LAST_SAVE = "saving the last state"
"""The phase in which a run that failed saves a last checkpoint."""


class EventKind(StrEnum):
    """The kinds of what happens in a run."""

    STARTING = "starting"
    """A process has made the folder, and prepares to train."""
    TRAINING = "training"
    RESUMED = "resumed"
    LOADED = "loaded"
    """A script has loaded a checkpoint into the run."""
    EVALUATION = "evaluation"
    """Of `turnsmith eval`: it begins. Of training: an evaluation is made, which `evaluations.jsonl` has."""
    SERVING = "serving"
    PLAYED = "played"
    PHASE = "phase"
    """A part of a step begins."""
    STEP = "step"
    """A step is made, whose record is in `metrics.jsonl`."""
    LEDGER = "ledger"
    """A step's line of `ledger.jsonl`."""
    CHECKPOINT = "checkpoint"
    WARNING = "warning"
    FINISHED = "finished"
    STOPPED = "stopped"
    """By Ctrl-C."""
    PREEMPTED = "preempted"
    """By a scheduler."""
    FAILED = "failed"


class RunState(StrEnum):
    """The state of a run."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    """Stopped by Ctrl-C."""
    PREEMPTED = "preempted"
    """Stopped by a scheduler, with SIGTERM or SIGUSR1."""
    FAILED = "failed"
    """Ended with an error, which is in its events."""
    DIED = "died"
    """Its process is gone without recording an end, as after SIGKILL."""
    UNCLEAR = "unclear"
    """No end was recorded, and its process cannot be checked from this host."""


_BEGINNINGS = (
    EventKind.STARTING,
    EventKind.RESUMED,
    EventKind.TRAINING,
    EventKind.EVALUATION,
    EventKind.SERVING,
)
_ENDS = (RunState.FINISHED, RunState.STOPPED, RunState.PREEMPTED, RunState.FAILED)


def this_process() -> dict[str, Any]:
    """What a run records about its process when it begins, so that readers can tell whether it is still alive."""
    return {"pid": os.getpid(), "host": platform.node(), "born": process_start(os.getpid())}


def state_of(events: Sequence[Mapping[str, Any]], last_write: float | None = None) -> RunState:
    """The state of a run, from its events; `last_write` is when it last wrote anything, in seconds since 1970.

    Example:
        >>> begun = {"kind": "training", **this_process()}
        >>> state_of([begun]), state_of([begun, {"kind": "finished"}]), state_of([{**begun, "pid": 0}])
        (<RunState.RUNNING: 'running'>, <RunState.FINISHED: 'finished'>, <RunState.DIED: 'died'>)
    """
    begins_and_ends = [event for event in events if event.get("kind") in (*_BEGINNINGS, *_ENDS)]
    last = begins_and_ends[-1] if begins_and_ends else {}
    if last.get("kind") in _ENDS:
        return RunState(last["kind"])
    if last.get("host") == platform.node() and "pid" in last:
        return RunState.RUNNING if is_alive(last) else RunState.DIED
    recent = last_write is not None and time.time() - last_write < _QUIET_SECONDS
    return RunState.RUNNING if recent else RunState.UNCLEAR


def process_start(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is no such process or it has ended, or no /proc.

    With the process id it identifies a process, because ids are reused.

    Example:
        >>> process_start(os.getpid()) == process_start(os.getpid())
        True
    """
    try:
        # The program's name comes first, in parentheses, and may contain anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[19])  # an ended process may stay listed
    except (OSError, ValueError, IndexError):
        return None


def is_alive(process: Mapping[str, Any]) -> bool:
    """Whether this process is alive, rather than a later one with the same id."""
    pid = int(process["pid"])
    try:
        os.kill(pid, 0)
    except PermissionError:
        pass
    except OSError:
        return False
    return pid > 0 and process.get("born") in (None, process_start(pid))
