"""Whether a run is going on, and how it ended, as its events and its process tell."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

_BEGINNINGS = ("starting", "resumed", "training", "evaluation")
_QUIET_SECONDS = 900


class RunState(StrEnum):
    """How a run stands."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    """By Ctrl-C."""
    FAILED = "failed"
    """With an error, which the folder holds."""
    DIED = "died"
    """Its process is gone and left no word, as after SIGKILL."""
    UNCLEAR = "unclear"
    """No end was recorded, and its process cannot be looked up from here."""


_ENDS = (RunState.FINISHED, RunState.STOPPED, RunState.FAILED)


def this_process() -> dict[str, Any]:
    """What a run notes about its process when it begins, so that a reader can tell whether it is still there."""
    return {"pid": os.getpid(), "host": platform.node(), "born": _born(os.getpid())}


def state_of(events: Sequence[Mapping[str, Any]], last_write: float | None = None) -> RunState:
    """How a run stands, from its events; `last_write` is when it last wrote anything, in seconds since 1970.

    Example:
        >>> begun = {"kind": "training", **this_process()}
        >>> state_of([begun]), state_of([begun, {"kind": "finished"}]), state_of([{**begun, "pid": 0}])
        (<RunState.RUNNING: 'running'>, <RunState.FINISHED: 'finished'>, <RunState.DIED: 'died'>)
    """
    telling = [event for event in events if event.get("kind") in (*_BEGINNINGS, *_ENDS)]
    last = telling[-1] if telling else {}
    if last.get("kind") in _ENDS:
        return RunState(last["kind"])
    if last.get("host") == platform.node() and "pid" in last:
        return RunState.RUNNING if _is_alive(last) else RunState.DIED
    fresh = last_write is not None and time.time() - last_write < _QUIET_SECONDS
    return RunState.RUNNING if fresh else RunState.UNCLEAR


def _is_alive(process: Mapping[str, Any]) -> bool:
    """Whether that very process is there, and not another one that got its number later."""
    pid = int(process["pid"])
    try:
        os.kill(pid, 0)
    except PermissionError:
        pass
    except OSError:
        return False
    return pid > 0 and process.get("born") in (None, _born(pid))


def _born(pid: int) -> int | None:
    """When a process started, in ticks since the machine did; None where the system does not say."""
    try:
        # The name of the program, in brackets, may hold anything; what counts comes after it.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
