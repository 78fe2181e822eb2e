"""One interpreter that waits, inside its own sandbox, for its one program."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
from tempfile import TemporaryDirectory

from turnsmith.tools.sandbox.command import Command
from turnsmith.tools.sandbox.seccomp import filter_program

_ENVIRONMENT = {"HOME": "/tmp", "LANG": "C.UTF-8"}
"""All the variables that a program sees, but for one that the loader may need."""


class Cell:
    """A started process with three pipes: in goes the program, out comes what it prints, and how it ended.

    Used once. When its cell is gone, nothing of a program is left: its process, files and namespaces were its own.
    """

    __slots__ = ("_folder", "code", "is_ready", "output", "process", "status")

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        code: int,
        output: int,
        status: int,
        folder: TemporaryDirectory[str] | None,
    ) -> None:
        self.process = process
        self.code = code
        """Write the program here, then close it; -1 when closed."""
        self.output = output
        """Read what it prints here."""
        self.status = status
        """Read `r` here when it is ready, then one byte, the exit code."""
        self.is_ready = False
        """Whether it has said so."""
        self._folder = folder

    @classmethod
    def start(cls, command: Command) -> Cell:
        """Start one; it gets ready by itself. Call it from a thread that lives on: the cell dies with it."""
        # Without a sandbox there is no private /tmp. Removed at the end of this process, if not before.
        folder = None if command.before else TemporaryDirectory(prefix="turnsmith-bare-", ignore_cleanup_errors=True)
        code_in, code = os.pipe()
        output, output_in = os.pipe()
        status, status_in = os.pipe()
        seccomp = _filter_pipe() if command.before else status_in
        try:
            process = subprocess.Popen(
                command.line(status_in, seccomp),
                stdin=code_in,
                stdout=output_in,
                stderr=output_in,
                pass_fds=(status_in, seccomp),
                env=_ENVIRONMENT,
                cwd=folder.name if folder else "/",
                start_new_session=True,
            )
        except BaseException:
            _close(code, output, status)
            raise
        finally:
            _close(code_in, output_in, status_in, *({seccomp} - {status_in}))
        for end in (code, output, status):
            os.set_blocking(end, False)
        return cls(process, code, output, status, folder)

    @property
    def is_alive(self) -> bool:
        """Whether it can still be used."""
        return self.process.poll() is None

    def count_files(self) -> int:
        """How many files and folders there are in its `/tmp`; 0 where this process may not look inside."""
        pid = self.process.pid
        try:
            with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as children:  # noqa: PTH123
                first = children.read().split()[0]
            inside = os.statvfs(f"/proc/{first}/root/tmp")
        except (OSError, IndexError):
            return 0
        return inside.f_files - inside.f_ffree if self._folder is None else 0

    def close_code(self) -> None:
        """Say that the program is complete."""
        if self.code >= 0:
            os.close(self.code)
            self.code = -1

    def kill(self) -> None:
        """End it and everything in it, and close the pipes.

        bwrap's death kills the first process of the namespace, which takes all others with it; none of them can prevent
        that. Without a sandbox only the process's own group is killed. A cell that is not ready has no program yet, and
        what bwrap has started may not be tied to it yet; it ends by itself when it finds that its input is closed.
        """
        self.close_code()
        if self.output < 0:
            return
        if self.is_ready or self._is_ready_now():
            self._kill_group()
        _close(self.output, self.status)
        self.output = self.status = -1

    def reap(self) -> None:
        """Wait until a killed cell is gone."""
        for seconds in (10, 1):
            try:
                self.process.wait(timeout=seconds)
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
        if self.process.returncode is None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def _filter_pipe() -> int:
    """A pipe that holds the filter, for bwrap to read. It is far smaller than what a pipe takes."""
    seccomp, filling = os.pipe()
    os.write(filling, filter_program(platform.machine()))
    os.close(filling)
    return seccomp


def _close(*ends: int) -> None:
    for end in ends:
        os.close(end)
