"""One interpreter that waits in a sandbox of its own for one program."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
from tempfile import TemporaryDirectory

from turnsmith.tools.sandbox.command import Command
from turnsmith.tools.sandbox.seccomp import filter_program

START_LIMIT = 60.0
"""Seconds that a sandbox may take to get ready: far more than on a machine that is not overloaded."""
_ENVIRONMENT = {"HOME": "/tmp", "LANG": "C.UTF-8"}
"""All environment variables of a program, except one that the loader may need."""


class SandboxProcess:
    """A started interpreter with three pipes: for the program, for its output, and for its status.

    Used for one program. When it is killed nothing of the program is left: process, files and namespaces were its own.
    """

    __slots__ = ("_folder", "is_ready", "output", "popen", "status", "stdin")

    def __init__(
        self,
        popen: subprocess.Popen[bytes],
        stdin: int,
        output: int,
        status: int,
        folder: TemporaryDirectory[str] | None,
    ) -> None:
        self.popen = popen
        self.stdin = stdin
        """Write the program here, then close it; -1 when closed."""
        self.output = output
        """Read standard output and standard error here."""
        self.status = status
        """Read here: `r` once it is ready, then one byte, the exit code."""
        self.is_ready = False
        """Whether the `r` was read."""
        self._folder = folder

    @classmethod
    def start(cls, command: Command) -> SandboxProcess:
        """Start one, without waiting until it is ready. It dies with the thread that called this."""
        # Without a sandbox there is no private /tmp.
        folder = None if command.before else TemporaryDirectory(prefix="turnsmith-bare-", ignore_cleanup_errors=True)
        child_stdin, stdin = os.pipe()
        output, child_output = os.pipe()
        status, child_status = os.pipe()
        seccomp = _filter_pipe() if command.before else child_status
        try:
            popen = subprocess.Popen(
                command.line(child_status, seccomp),
                stdin=child_stdin,
                stdout=child_output,
                stderr=child_output,
                pass_fds=(child_status, seccomp),
                env=_ENVIRONMENT,
                cwd=folder.name if folder else "/",
                start_new_session=True,
            )
        except BaseException:
            _close(stdin, output, status)
            raise
        finally:
            _close(child_stdin, child_output, child_status, *({seccomp} - {child_status}))
        for pipe in (stdin, output, status):
            os.set_blocking(pipe, False)
        return cls(popen, stdin, output, status, folder)

    @property
    def is_alive(self) -> bool:
        """Whether the process is still running."""
        return self.popen.poll() is None

    def count_files(self) -> int:
        """The number of files and folders in its `/tmp`; 0 where `/proc` does not let this process see it."""
        pid = self.popen.pid
        try:
            with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as children:  # noqa: PTH123
                first = children.read().split()[0]
            inside = os.statvfs(f"/proc/{first}/root/tmp")
        except (OSError, IndexError):
            return 0
        return inside.f_files - inside.f_ffree if self._folder is None else 0

    def close_stdin(self) -> None:
        """Tell it that the program is complete."""
        if self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1

    def kill(self) -> None:
        """Kill it with everything inside, and close the pipes.

        When bwrap dies the kernel kills the first process of the namespace and with it all others; none of them can
        prevent that. Without a sandbox only the process group is killed. A process that is not ready has no program
        yet, and its interpreter may not be tied to bwrap yet; that ends by itself when it finds its input closed.
        """
        self.close_stdin()
        if self.output < 0:
            return
        if self.is_ready or self._is_ready_now():
            self._kill_group()
        _close(self.output, self.status)
        self.output = self.status = -1

    def reap(self) -> None:
        """Wait until the killed process is gone."""
        for seconds in (10, 1):
            try:
                self.popen.wait(timeout=seconds)
                break
            except subprocess.TimeoutExpired:
                self._kill_group()
        if self._folder:
            self._folder.cleanup()

    def _is_ready_now(self) -> bool:
        try:
            return os.read(self.status, 1) == b"r"
        except BlockingIOError:
            return False

    def _kill_group(self) -> None:
        if self.popen.returncode is None:
            try:
                os.killpg(self.popen.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def _filter_pipe() -> int:
    """A pipe from which bwrap reads the filter, which is far smaller than the buffer of a pipe."""
    read_end, write_end = os.pipe()
    os.write(write_end, filter_program(platform.machine()))
    os.close(write_end)
    return read_end


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
