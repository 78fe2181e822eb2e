"""The command that starts an interpreter in the sandbox: what it sees of the machine, and as which user it runs."""

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
"""Isolated mode, no site-packages, no bytecode files, UTF-8."""


@dataclass(frozen=True, slots=True)
class Command:
    """How to start an interpreter that waits for a program."""

    before: tuple[str, ...]
    """Everything before the interpreter, except the seccomp filter; empty without a sandbox."""
    python: tuple[str, ...]
    """The interpreter, its options and its code; the number of its status pipe follows."""
    limits: tuple[str, ...]

    def line(self, status: int, seccomp: int) -> list[str]:
        """The argument list of the command, for these two file descriptors."""
        wrapper = [*self.before, "--seccomp", str(seccomp), "--"] if self.before else []
        return [*wrapper, *self.python, str(status), *self.limits]


@lru_cache(maxsize=32)
def command_for(limits: SandboxLimits, *, is_sandboxed: bool = True) -> Command:
    """The command that starts an interpreter with these limits."""
    inside = Path(__file__).with_name("inside.py").read_text(encoding="utf-8")
    numbers = (math.ceil(limits.seconds) + 1, limits.memory, limits.disk)
    home, mounts = _interpreter()
    python = f"{home}/bin/python" if is_sandboxed else sys.executable
    before = (*_isolation(), *_system(), *mounts, *_private(limits)) if is_sandboxed else ()
    return Command(before, (python, *_OPTIONS, inside), tuple(map(str, numbers)))


def bwrap() -> str | None:
    """The path of bubblewrap, if it is installed."""
    return shutil.which("bwrap")


def _isolation() -> list[str]:
    return [
        bwrap() or "bwrap",
        *("--unshare-all", "--unshare-user", "--disable-userns"),
        *("--uid", NOBODY, "--gid", NOBODY, "--cap-drop", "ALL"),
        *("--hostname", "sandbox", "--new-session", "--die-with-parent"),
    ]


def _system() -> list[str]:
    """Mount the shared libraries and nothing else of the system: no programs, no settings, no `/proc`, no `/sys`."""
    options: list[str] = []
    for folder in ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/nix/store"):
        if os.path.islink(folder):  # noqa: PTH114
            options += ["--symlink", os.readlink(folder), folder]  # noqa: PTH115
        elif os.path.isdir(folder):  # noqa: PTH112
            options += ["--ro-bind", folder, folder]
    return options


def _interpreter() -> tuple[str, list[str]]:
    """The interpreter's prefix inside the sandbox, and the options that mount it there.

    It is the interpreter that runs turnsmith, without any virtual environment. One among the user's own files is
    mounted under another name, so that the model learns no path of this machine.
    """
    prefix = os.path.realpath(sys.base_prefix)
    executable = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    home = prefix if prefix == "/usr" or prefix.startswith("/usr/") else "/python"
    options = [] if prefix == "/usr" else ["--ro-bind", f"{prefix}/lib", f"{home}/lib"]
    options += ["--ro-bind", executable, f"{home}/bin/python"]
    standard = Path(os.path.realpath(sysconfig.get_path("stdlib", vars={"base": sys.base_prefix})))
    for packages in (standard / "site-packages", standard / "dist-packages"):
        if packages.is_dir():
            # Installed packages may reveal the user's projects. What hides them must not be writable.
            hidden = f"{home}/{packages.relative_to(prefix)}"
            options += ["--size", "4096", "--tmpfs", hidden, "--remount-ro", hidden]
    if prefix != "/usr" and sysconfig.get_config_var("Py_ENABLE_SHARED"):
        # The loader's cache is not mounted, and would name the prefix outside of the sandbox.
        options += ["--setenv", "LD_LIBRARY_PATH", f"{home}/lib"]
    return home, options


def _private(limits: SandboxLimits) -> list[str]:
    return [
        # A file, not the device: if root runs turnsmith, the program would own the device of the machine.
        *("--symlink", "/tmp/.null", "/dev/null"),
        *("--size", str(limits.disk), "--tmpfs", "/tmp", "--chdir", "/tmp", "--remount-ro", "/"),
    ]
