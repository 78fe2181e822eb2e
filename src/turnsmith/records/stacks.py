"""Where every process of a run stands, on request: the stack of each of its threads, written to the run's folder.

Each process registers at its start and then costs nothing. The signal handler is written in C and needs neither the
interpreter nor its lock, so a process that hangs inside a library answers as well.
"""

from __future__ import annotations

import faulthandler
import os
import platform
import re
import signal
import time
from pathlib import Path
from typing import IO

VARIABLE = "TURNSMITH_STACKS"
"""The environment variable with the folder that processes register in."""
_FILE = re.compile(r"(?P<host>.+)-(?P<pid>\d+)-(?P<born>\d+)\.txt")
_WRITING_SECONDS = 1.0
_registered: IO[str] | None = None


def answer_for_stacks(part: str, *, is_guess: bool = False) -> None:
    """Let this process write its stacks when it is asked; `part` says what it is, such as `rollout server`.

    A guess does not change what is known already.

    Example:
        >>> answer_for_stacks("nobody asked for any")  # does nothing where the variable is not set
    """
    global _registered
    folder = os.environ.get(VARIABLE)
    if not folder or (is_guess and _registered is not None):
        return
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        file = (Path(folder) / f"{platform.node()}-{os.getpid()}-{_born(os.getpid())}.txt").open("w")
        file.write(f"{part}, process {os.getpid()} on {platform.node()}\n")
        file.flush()
        faulthandler.register(signal.SIGUSR2, file=file, all_threads=True)
    except (OSError, ValueError):  # No place to write: a run must not fail for that.
        return
    _registered = file


def collect_stacks(folder: Path, target: Path) -> list[str]:
    """Ask every registered process on this machine for its stacks; write them into one file and return their parts.

    Example:
        >>> import tempfile
        >>> here = Path(tempfile.mkdtemp())
        >>> collect_stacks(here / "stacks", here / "stacks.txt")
        ['the process that watches']
    """
    asked: list[Path] = []
    for file in sorted(folder.glob("*.txt")) if folder.is_dir() else ():
        named = _FILE.fullmatch(file.name)
        if named is None or named["host"] != platform.node() or _born(int(named["pid"])) != int(named["born"]):
            continue  # on another machine, or gone: its number may be another process's by now
        os.kill(int(named["pid"]), signal.SIGUSR2)
        asked.append(file)
    time.sleep(_WRITING_SECONDS if asked else 0.0)
    parts: list[str] = []
    with target.open("w") as together:
        for file in asked:
            text = file.read_text(errors="replace")
            parts.append(text.partition(",")[0])
            together.write(f"{text}\n")
        together.write(f"the process that watches, {os.getpid()} on {platform.node()}\n")
        together.flush()
        faulthandler.dump_traceback(together, all_threads=True)
    return [*parts, "the process that watches"]


def _born(pid: int) -> int:
    """When a process started, in ticks since the machine did; -1 if there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return -1
