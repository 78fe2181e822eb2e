"""Whether this machine has what the sandbox needs. If not, nothing is run: there is no silent way around it."""

from __future__ import annotations

import os
import select
import sys
from functools import lru_cache

from turnsmith.errors import MissingDependency
from turnsmith.tools.sandbox.command import bwrap, command_for
from turnsmith.tools.sandbox.limits import SandboxLimits
from turnsmith.tools.sandbox.process import Cell
from turnsmith.tools.sandbox.seccomp import is_machine_known

_PATIENCE = 60.0
_WAY_OUT = (
    " If you trust every program that the model may write, PythonTool(run_without_sandbox=True) runs them with your "
    "own rights."
)


def check_sandbox() -> None:
    """Start a sandbox once in this process; say what is missing if it does not start.

    Example:
        >>> check_sandbox()
    """
    problem = _problem(os.getpid())
    if problem:
        raise MissingDependency(f"Model-written code is not run here: {problem}{_WAY_OUT}")


@lru_cache(maxsize=1)
def _problem(_: int) -> str:
    if not sys.platform.startswith("linux"):
        return "its sandbox needs Linux."
    if not is_machine_known():
        return "its sandbox knows the system calls of x86_64 and aarch64 only."
    if bwrap() is None:
        return "its sandbox needs bubblewrap, which is not installed. Install it (apt-get install bubblewrap)."
    said = _try()
    if said is None:
        return ""
    return (
        f"its sandbox does not start (bwrap said: {said}). bubblewrap 0.8 or newer is needed, and leave to make user "
        "namespaces: see docs/sandbox.md for containers and for Ubuntu."
    )


def _try() -> str | None:
    """Start one; None if it gets ready, else what it said."""
    cell = Cell.start(command_for(SandboxLimits()))
    try:
        select.select([cell.status], [], [], _PATIENCE)
        if _read(cell.status) == b"r":
            return None
        return _read(cell.output).decode("utf-8", "replace").strip()[:300].removeprefix("bwrap: ") or "nothing"
    finally:
        cell.kill()
        cell.reap()


def _read(end: int) -> bytes:
    try:
        return os.read(end, 1024)
    except BlockingIOError:
        return b""
