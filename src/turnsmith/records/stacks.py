"""Stack traces of all processes of a run, on request: which line each thread is at, written to the run folder.

Each process registers when it starts, at no later cost. The signal handler is written in C and needs neither the
interpreter nor its lock, so a process that hangs inside a library responds too. It shows the 100 newest threads:
the main thread, which is the oldest, has a signal of its own.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import platform
import re
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import IO

from turnsmith.records.run_state import process_start

VARIABLE = "TURNSMITH_STACKS"
"""The environment variable that holds the folder in which processes register."""
_FILE = re.compile(r"(?P<host>.+)-(?P<pid>\d+)-(?P<start>\d+)\.txt")
_ALL_THREADS = signal.SIGUSR2
# The kernel gives a signal to the main thread if that does not block it. macOS has no real-time signals.
_MAIN_THREAD = getattr(signal, "SIGRTMAX", signal.SIGUSR1)
_WRITING_SECONDS = 1.0
_WATCHER = "the process that watches"
_registered: IO[str] | None = None


def enable_stack_dump(role: str, *, is_guess: bool = False) -> None:
    """Let this process write its stack traces when asked; `role` says what it does, such as `rollout server`.

    With `is_guess`, a role that is registered already stays.

    Example:
        >>> enable_stack_dump("example")  # does nothing where the environment variable is not set
    """
    global _registered
    folder = os.environ.get(VARIABLE)
    if not folder or (is_guess and _registered is not None):
        return
    host, pid = platform.node(), os.getpid()
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        file = (Path(folder) / f"{host}-{pid}-{process_start(pid)}.txt").open("w")
        file.write(f"{role}, process {pid} on {host}\n")
        file.flush()
        faulthandler.register(_MAIN_THREAD, file=file, all_threads=False)
        faulthandler.register(_ALL_THREADS, file=file, all_threads=True)
    except (OSError, ValueError):  # A run does not fail for this.
        return
    _registered = file


def collect_stacks(folder: Path, target: Path) -> list[str]:
    """Ask every registered process on this host for its stack traces, write all into `target`, and return the roles.

    Example:
        >>> import tempfile
        >>> here = Path(tempfile.mkdtemp())
        >>> collect_stacks(here / "stacks", here / "stacks.txt")
        ['the process that watches']
    """
    processes: list[tuple[int, Path]] = []
    for file in sorted(folder.glob("*.txt")) if folder.is_dir() else ():
        process = _FILE.fullmatch(file.name)
        if (
            process is None
            or process["host"] != platform.node()
            or process_start(int(process["pid"])) != int(process["start"])
        ):
            continue  # On another host, or dead; its id may now be another process's.
        processes.append((int(process["pid"]), file))
    # In two rounds, because a process ignores a signal while it is writing.
    for number in (_MAIN_THREAD, _ALL_THREADS) if processes else ():
        for pid, _ in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        time.sleep(_WRITING_SECONDS)
    roles: list[str] = []
    with target.open("w") as output:
        for _, file in processes:
            text = file.read_text(errors="replace")
            roles.append(text.partition(",")[0])
            output.write(f"{text}\n")
        output.write(f"{_WATCHER}, {os.getpid()} on {platform.node()}\n")
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():  # pyright: ignore[reportPrivateUsage]
            output.write(f"\n{names.get(ident, 'a thread that Python did not start')}:\n")
            traceback.print_stack(frame, file=output)
    return [*roles, _WATCHER]
