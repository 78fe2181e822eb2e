"""Check whether this machine can run the sandbox. If it cannot, no code is run: there is no silent fallback."""

from __future__ import annotations

import os
import select
import sys
from functools import lru_cache

from turnsmith.errors import MissingDependency
from turnsmith.tools.sandbox.command import bwrap, command_for
from turnsmith.tools.sandbox.limits import SandboxLimits
from turnsmith.tools.sandbox.process import SandboxProcess
from turnsmith.tools.sandbox.proof import PROOF
from turnsmith.tools.sandbox.seccomp import is_machine_known

_START_LIMIT = 60.0
_FALLBACK = (
    " If you trust every program that the model may write, PythonTool(run_without_sandbox=True) runs them with your "
    "own rights."
)


def check_sandbox() -> None:
    """Start a sandbox once per process, with a program in it that tries to get out.

    Raises:
        MissingDependency: It does not start, or does not isolate; the message says what is missing.

    Example:
        >>> check_sandbox()
    """
    problem = _problem(os.getpid())
    if problem:
        raise MissingDependency(f"Model-written code cannot be run on this machine: {problem}{_FALLBACK}")


@lru_cache(maxsize=1)
def _problem(_: int) -> str:
    if not sys.platform.startswith("linux"):
        return "the sandbox needs Linux."
    if not is_machine_known():
        return "the sandbox supports x86_64 and aarch64 only."
    if bwrap() is None:
        return "the sandbox needs bubblewrap, which is not installed. Install it (apt-get install bubblewrap)."
    error = _start_error()
    if error is None:
        return ""
    return (
        f"the sandbox {error}. It needs bubblewrap 0.8 or newer and permission to create user "
        "namespaces; docs/sandbox.md says how to get both in containers and on Ubuntu."
    )


def _start_error() -> str | None:
    """Start one sandbox, and prove from inside that it isolates; None if it does, else what is wrong."""
    process = SandboxProcess.start(command_for(SandboxLimits()))
    try:
        if _next(process.status) != b"r":
            return f"does not start (bwrap: {_output(process).removeprefix('bwrap: ') or 'no error output'})"
        process.is_ready = True
        program = PROOF.encode()
        os.write(process.stdin, len(program).to_bytes(8, "little") + program)
        process.close_stdin()
        _next(process.status)
        output = _output(process)
        return None if output == "isolated" else f"does not isolate ({output or 'no answer from inside'})"
    finally:
        process.kill()
        process.reap()


def _next(pipe: int) -> bytes:
    select.select([pipe], [], [], _START_LIMIT)
    try:
        return os.read(pipe, 1)
    except BlockingIOError:
        return b""


def _output(process: SandboxProcess) -> str:
    try:
        return os.read(process.output, 1024).decode("utf-8", "replace").strip()[:300]
    except BlockingIOError:
        return ""
