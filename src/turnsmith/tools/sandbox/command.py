"""The command that starts an interpreter in the sandbox: which parts of the machine it sees, and as whom it runs."""

from __future__ import annotations

import math
import os
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from turnsmith.tools.sandbox.limits import SandboxLimits

NOBODY = "65534"
_OPTIONS = ("-I", "-S", "-B", "-X", "utf8", "-c")
"""Isolated from the user's settings, without site-packages, writing no bytecode, UTF-8."""


@dataclass(frozen=True, slots=True)
class Command:
    """How to start an interpreter that waits for a program."""

    before: tuple[str, ...]
    """Everything up to the interpreter, but for the seccomp filter; empty without a sandbox."""
    python: tuple[str, ...]
    """The interpreter and its options, up to the number of the pipe that it reports to."""
    limits: tuple[str, ...]

    def line(self, status: int, seccomp: int) -> list[str]:
        """The words of the command, for these two open files."""
        wrapped = [*self.before, "--seccomp", str(seccomp), "--"] if self.before else []
        return [*wrapped, *self.python, str(status), *self.limits]


@lru_cache(maxsize=32)
def command_for(limits: SandboxLimits, *, is_sandboxed: bool = True) -> Command:
    """The command for these limits."""
    inside = Path(__file__).with_name("inside.py").read_text(encoding="utf-8")
    numbers = (math.ceil(limits.seconds) + 1, limits.memory, limits.disk)
    home, shown = _interpreter()
    python = f"{home}/bin/python" if is_sandboxed else sys.executable
    before = (*_isolation(), *_system(), *shown, *_private(limits)) if is_sandboxed else ()
    return Command(before, (python, *_OPTIONS, inside), tuple(map(str, numbers)))


def bwrap() -> str | None:
    """Where bubblewrap is, if it is installed."""
    return shutil.which("bwrap")


def _isolation() -> list[str]:
    return [
        bwrap() or "bwrap",
        *("--unshare-all", "--unshare-user", "--disable-userns"),
        *("--uid", NOBODY, "--gid", NOBODY, "--cap-drop", "ALL"),
        *("--hostname", "sandbox", "--new-session", "--die-with-parent"),
    ]


def _system() -> list[str]:
    """Shared libraries, and nothing else of the system: no programs, no settings, no `/proc`, no `/sys`."""
    words: list[str] = []
    for folder in ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/nix/store"):
        if os.path.islink(folder):  # noqa: PTH114
            words += ["--symlink", os.readlink(folder), folder]  # noqa: PTH115
        elif os.path.isdir(folder):  # noqa: PTH112
            words += ["--ro-bind", folder, folder]
    return words


def _interpreter() -> tuple[str, list[str]]:
    """Where the interpreter is inside, and what shows it there.

    It is the one that runs turnsmith, without any virtual environment. One that lives among the user's own files is
    shown under another name, so that the model learns no path of this machine.
    """
    prefix = os.path.realpath(sys.base_prefix)
    executable = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    home = prefix if prefix == "/usr" or prefix.startswith("/usr/") else "/python"
    words = [] if prefix == "/usr" else ["--ro-bind", f"{prefix}/lib", f"{home}/lib"]
    words += ["--ro-bind", executable, f"{home}/bin/python"]
    standard = Path(os.path.realpath(sysconfig.get_path("stdlib", vars={"base": sys.base_prefix})))
    for packages in (standard / "site-packages", standard / "dist-packages"):
        if packages.is_dir():
            # Others' packages may tell of the user's projects. What hides them must not be a place to write to.
            hidden = f"{home}/{packages.relative_to(prefix)}"
            words += ["--size", "4096", "--tmpfs", hidden, "--remount-ro", hidden]
    if prefix != "/usr" and sysconfig.get_config_var("Py_ENABLE_SHARED"):
        # The loader's own list of places is not shown, and may name the old place.
        words += ["--setenv", "LD_LIBRARY_PATH", f"{home}/lib"]
    return home, words


def _private(limits: SandboxLimits) -> list[str]:
    return [
        # A file, not the device: where root runs turnsmith, the program would own the machine's own.
        *("--symlink", "/tmp/.null", "/dev/null"),
        *("--size", str(limits.disk), "--tmpfs", "/tmp", "--chdir", "/tmp", "--remount-ro", "/"),
    ]
