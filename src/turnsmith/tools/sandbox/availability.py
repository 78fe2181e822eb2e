"""Check whether this machine can run the sandbox. If it cannot, no code is run: there is no silent fallback.

`PROOF` is a program that tries to leave the sandbox it runs in, and says which layers do not hold. It runs in the first
sandbox of each process, before any program of a model.
"""

from __future__ import annotations

import os
import select
import sys
from functools import lru_cache

from turnsmith.errors import MissingDependency
from turnsmith.tools.sandbox.command import SandboxLimits, bwrap, command_for
from turnsmith.tools.sandbox.process import START_LIMIT, SandboxProcess
from turnsmith.tools.sandbox.seccomp import is_machine_known

PROOF = """
import os, resource, sys

def is_refused(attempt, *arguments):
    try:
        attempt(*arguments)
    except (OSError, RuntimeError):
        return True
    return False

def connect():
    import socket
    socket.socket().connect(("127.0.0.1", 1))

def start_thread():
    import _thread
    _thread.start_new_thread(int, ())

def number_of_files():
    import posix
    return sum(not is_refused(posix.fstat, number) for number in range(64))

hidden = ("/etc", "/home", "/root", "/proc", "/sys", "/usr/bin", "/var")
visible = [path for path in hidden if not is_refused(os.stat, path)]
layers = {
    "files of this machine are visible: " + ", ".join(visible): not visible,
    "the file system can be written to": is_refused(open, "/planted", "w") and is_refused(open, os.__file__, "r+"),
    "the network can be used": is_refused(connect),
    "processes can be started": is_refused(os.fork),
    "threads can be started": is_refused(start_thread),
    "it does not run as nobody": os.getresuid() == os.getresgid() == (65534,) * 3,
    "environment variables are inherited": not set(os.environ) - {"HOME", "LANG", "LC_CTYPE", "LD_LIBRARY_PATH", "PWD"},
    "open files are inherited": number_of_files() <= 4,
    "memory is not limited": resource.getrlimit(resource.RLIMIT_AS)[1] > 0,
}
print("; ".join(problem for problem, holds in layers.items() if not holds) or "isolated")
"""


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
    _prove(os.getpid())


@lru_cache(maxsize=1)
def _prove(_: int) -> None:
    # A failure is not remembered: a sandbox that was killed while it started says nothing of the next one.
    problem = _problem()
    if problem:
        raise MissingDependency(f"Model-written code cannot be run on this machine: {problem}{_FALLBACK}")


def _problem() -> str:
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
    select.select([pipe], [], [], START_LIMIT)
    try:
        return os.read(pipe, 1)
    except BlockingIOError:
        return b""


def _output(process: SandboxProcess) -> str:
    try:
        return os.read(process.output, 1024).decode("utf-8", "replace").strip()[:300]
    except BlockingIOError:
        return ""
